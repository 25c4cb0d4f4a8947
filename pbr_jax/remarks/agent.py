"""A language model as the judge of remarks: summarises a remark as a claim, and judges the claim.

The steps are those of LUF (prompts A.1.4 to A.1.6), in our own wording. Among fixed options, the most
probable one is chosen. This also works for small models, which may not write one of the options. Prompts and
answers are not kept in the cache of answers. The log contains the results, and can erase them.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pbr_jax.base.types import Document, UserError
from pbr_jax.llm import LLM, Sampling
from pbr_jax.models.thinking import after_thinking
from pbr_jax.options.remarks import Remarks
from pbr_jax.remarks.judge import Judgement
from pbr_jax.remarks.log import Remark
from pbr_jax.text.budget import shorten, water_fill

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
_VERDICTS: dict[str, tuple[Literal["correct", "incorrect", "unknown"], Literal["shared", "personal"]]] = {
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
        chances = {"correct": 0.0, "incorrect": 0.0, "unknown": 0.0}
        for words, (verdict, _) in _VERDICTS.items():
            chances[verdict] += likely[words]
        best: Any = max(chances, key=chances.__getitem__)
        shared = likely["correct, shared"] > likely["correct, personal"] and best == "correct"
        evidence: dict[str, Any] = {
            "documents": [[document.user_id, document.id] for document in documents],
            "probabilities": likely,
        }
        route: Literal["shared", "personal"] = "shared" if shared else "personal"
        targets = [i for i, document in enumerate(documents) if document.shared == shared]
        if best == "incorrect" or not targets or self._options.operations == "add":
            return Judgement(best, route, "add", None, evidence)
        operation, target = self._operation(said, texts, targets, evidence)
        return Judgement(best, route, operation, target, evidence)

    def _operation(
        self, said: str, texts: str, targets: Sequence[int], evidence: dict[str, Any]
    ) -> tuple[Literal["add", "modify", "hide"], int | None]:
        """What becomes of the documents at these places."""
        ways: dict[str, tuple[Literal["add", "modify", "hide"], int | None]] = {"add": ("add", None)}
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
        """How probable each answer is among these."""
        scores = self._llm.score([_said(prompt)] * len(answers), list(answers))
        logits = np.array([score.total for score in scores])
        chances = np.exp(logits - logits.max())
        return dict(zip(answers, (chances / chances.sum()).tolist(), strict=True))


def _said(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]
