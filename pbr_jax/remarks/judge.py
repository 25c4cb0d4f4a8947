"""What judges remarks: a language model, or a script that a person wrote."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import Document, UserError
from pbr_jax.llm import LLM, Sampling
from pbr_jax.llm.protocol import check_text
from pbr_jax.models.thinking import after_thinking
from pbr_jax.options import Remarks
from pbr_jax.remarks.log import Remark
from pbr_jax.text.budget import shorten, water_fill

Verdict = Literal["correct", "incorrect", "unknown"]
Route = Literal["shared", "personal"]
Operation = Literal["add", "modify", "hide"]
_CHOICES = {"verdict": get_args(Verdict), "route": get_args(Route), "operation": get_args(Operation)}
_FIELDS = {"remark", "summary", "document", *_CHOICES}


class Judgement(NamedTuple):
    """Whether a remark is right, whose store it belongs into, and what it does there.

    `target`: the place among the documents shown of the one that is modified or hidden. `evidence`: what the
    judgement rests on, as JSON, without texts.
    """

    verdict: Verdict
    route: Route = "personal"
    operation: Operation = "add"
    target: int | None = None
    evidence: dict[str, Any] = {}  # noqa: RUF012


@runtime_checkable
class Judge(Protocol):
    """Makes a claim of a remark, and judges it. `name` says which model or script it is, and `prompt_hash` is
    the hash of its wording."""

    @property
    def name(self) -> str: ...

    @property
    def prompt_hash(self) -> str: ...

    def summarise(self, text: str) -> str:
        """The claim that a remark makes, in a sentence or two; "" where it makes none."""
        ...

    def judge(self, remark: Remark, documents: Sequence[Document]) -> Judgement:
        """Judges the claim (`remark.summary`) beside documents, the shared ones and the user's own."""
        ...


def claim_of(judge: Judge, text: str) -> str:
    """The claim that a remark makes; "" where it makes none."""
    summary = judge.summarise(text)
    check_text(summary, f"the claim that {judge.name} makes of a remark")
    return summary if summary.strip() else ""


class Script:
    """A judge that follows rules, in a JSON file or as objects, for moderation by hand and for tests.

    A rule is `{"remark": PART, "verdict": ..., "route": ..., "operation": ..., "document": ID, "summary":
    ...}`; the first one whose PART stands in the remark holds, "" in every remark. What is left out is
    unknown, personal, add, and the remark's own words; `"summary": ""` says that nothing is claimed.
    """

    def __init__(self, rules: Sequence[dict[str, Any]], name: str = "script") -> None:
        for number, rule in enumerate(rules):
            self._check(rule, f"{name}: rule {number}")
        self._rules, self.name = list(rules), name
        self.prompt_hash = hashlib.sha256(json.dumps(self._rules).encode()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> "Script":
        """The rules of a file. Raises UserError for anything else."""
        try:
            rules = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise UserError(f"cannot read {path}: {said}; give a JSON file with a list of rules") from error
        if not isinstance(rules, list):
            raise UserError(f"{path}: found {type(rules).__name__}, want a list of rules")
        return cls(rules, str(path))

    @staticmethod
    def _check(rule: Any, place: str) -> None:
        if not isinstance(rule, dict) or not isinstance(rule.get("remark"), str) or set(rule) - _FIELDS:
            raise UserError(
                f'{place} is {rule!r:.80}, want an object with "remark" and any of '
                f"{', '.join(sorted(_FIELDS - {'remark'}))}"
            )
        for name, choices in _CHOICES.items():
            if rule.get(name, choices[0]) not in choices:
                raise UserError(f"{place}: {name} is {rule[name]!r:.80}, want one of {', '.join(choices)}")
        for name in ("remark", "summary", "document"):
            check_text(rule.get(name, ""), f"{place}: {name}")

    def _rule(self, text: str) -> dict[str, Any]:
        return next((rule for rule in self._rules if rule["remark"] in text), {})

    def summarise(self, text: str) -> str:
        return self._rule(text).get("summary", text)

    def judge(self, remark: Remark, documents: Sequence[Document]) -> Judgement:
        rule = self._rule(remark.text or "")
        ids = [document.id for document in documents]
        target = ids.index(rule["document"]) if rule.get("document") in ids else None
        return Judgement(
            rule.get("verdict", "unknown"),
            rule.get("route", "personal"),
            rule.get("operation", "add"),
            target,
        )


NOTHING = "NONE"
SUMMARY = (
    "A user wrote this message to an assistant:\n{remark}\n\nState what the user tells in it (a fact, a "
    "correction, a wish of their own) in one or two sentences that make sense without the message. Write "
    f"{NOTHING} where the user tells nothing. Write nothing else."
)
KNOWLEDGE = (
    "This statement may be true or false:\n{claim}\n\nWrite a short paragraph about its subject from what "
    "you know yourself."
)
CLAIM = "A user of an assistant claims:\n{claim}\n\n"
BESIDE = (
    "Documents of a collection:\n{documents}\n\nWhat you wrote about the subject before you saw them:\n"
    "{knowledge}\n\n"
)
VERDICT = (
    "{beside}{claim}{rule} Whatever is true for everybody belongs into the store that all users share; "
    "what concerns this user alone, and what cannot be checked, belongs into the user's personal store. "
    "Answer with one of: {choices}."
)
GUIDED = "Compare the claim with the documents and with what you wrote: is it correct?"
DIRECT = "Is the claim correct?"
OPERATION = (
    "Documents of a collection:\n{documents}\n\n{claim}The claim is accepted. Does it replace what one of "
    "these documents says (modify and its number), show that one of them is wrong and should go (hide and "
    "its number), or say something new (add)? Answer with one of: {choices}."
)
_VERDICTS: dict[str, tuple[Verdict, Route]] = {
    "correct, shared": ("correct", "shared"),
    "correct, personal": ("correct", "personal"),
    "incorrect": ("incorrect", "personal"),
    "unknown": ("unknown", "personal"),
}


class Agent:
    """A language model that judges remarks with these `options`. It must be able to score texts."""

    def __init__(self, llm: LLM, options: Remarks) -> None:
        self._llm, self._options = llm, options
        wording = [SUMMARY, KNOWLEDGE, CLAIM, BESIDE, VERDICT, GUIDED, DIRECT, OPERATION, [*_VERDICTS]]
        told = [*wording, options.judgement, options.operations, options.max_tokens, options.max_new_tokens]
        told.append("answers compared by log p per token")
        self.prompt_hash = hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def name(self) -> str:
        return self._llm.fingerprint

    def summarise(self, text: str) -> str:
        """Summarises the claim of a remark in one or two sentences (prompt A.1.4); "": it makes no claim."""
        written = self._written(SUMMARY.format(remark=self._cut(text, self._options.max_tokens)))
        bare = written.strip(" .\"'").upper()
        return "" if bare in ("", NOTHING) else written

    def judge(self, remark: Remark, documents: Sequence[Document]) -> Judgement:
        """Judges whether a claim is correct, where it belongs, and how documents change (A.1.5, A.1.6).

        With the judgement "guided", the prompt contains the documents and the model's own knowledge; with
        "direct", it contains only the claim.
        """
        # One line, as documents have: none of it can look like another part of the prompt.
        claim = self._cut(" ".join((remark.summary or "").split()), self._options.max_tokens // 2)
        said, texts, beside = CLAIM.format(claim=claim), self._shown(claim, documents), ""
        if self._options.judgement == "guided":
            knowledge = self._written(KNOWLEDGE.format(claim=claim))
            beside = BESIDE.format(documents=texts or "(none was found)", knowledge=knowledge)
        rule = GUIDED if beside else DIRECT
        prompt = VERDICT.format(beside=beside, claim=said, rule=rule, choices="; ".join(_VERDICTS))
        likely = self._chances(prompt, list(_VERDICTS))
        verdict, route = _VERDICTS[max(likely, key=likely.__getitem__)]
        evidence: dict[str, Any] = {
            "documents": [[document.user_id, document.id] for document in documents],
            "probabilities": likely,
        }
        targets = [i for i, document in enumerate(documents) if document.shared == (route == "shared")]
        if verdict == "incorrect" or not targets or self._options.operations == "add":
            return Judgement(verdict, route, "add", None, evidence)
        operation, target = self._operation(said, texts, targets, evidence)
        return Judgement(verdict, route, operation, target, evidence)

    def _operation(
        self, said: str, texts: str, targets: Sequence[int], evidence: dict[str, Any]
    ) -> tuple[Operation, int | None]:
        """What becomes of the documents at these places."""
        ways: dict[str, tuple[Operation, int | None]] = {"add": ("add", None)}
        for place in targets:
            ways[f"modify {place + 1}"] = "modify", place
            ways[f"hide {place + 1}"] = "hide", place
        prompt = OPERATION.format(documents=texts, claim=said, choices="; ".join(ways))
        evidence["operations"] = likely = self._chances(prompt, list(ways))
        return ways[max(likely, key=likely.__getitem__)]

    def _shown(self, claim: str, documents: Sequence[Document]) -> str:
        """The documents, numbered from 1, in what the claim leaves of half of the budget."""
        texts = [" ".join(document.text.split()) for document in documents]
        budget = self._options.max_tokens // 2 - self._llm.count(claim)
        shares = water_fill([self._llm.count(text) for text in texts], budget)
        return "\n".join(
            f"[{n}] {self._cut(text, share)}" for n, (text, share) in enumerate(zip(texts, shares), 1)
        )

    def _cut(self, text: str, tokens: int) -> str:
        return shorten(text, max(tokens, 1), count=self._llm.count, truncate=self._llm.truncate)

    def _written(self, prompt: str) -> str:
        sampling = Sampling(max_new_tokens=self._options.max_new_tokens)
        (answer,) = self._llm.generate([_said(prompt)], sampling)
        text = after_thinking(answer)
        if text is None:
            raise UserError(
                "the model's text ends inside its thinking; raise remarks.max_new_tokens in the run's "
                "config, or turn the model's thinking off, and run again"
            )
        return text.strip()

    def _chances(self, prompt: str, answers: Sequence[str]) -> dict[str, float]:
        """How probable each answer is among these, by log p per token: they have different lengths."""
        scores = self._llm.score([_said(prompt)] * len(answers), list(answers))
        logits = np.array([score.mean for score in scores])
        chances = np.exp(logits - logits.max())
        return dict(zip(answers, (chances / chances.sum()).tolist(), strict=True))


def _said(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]
