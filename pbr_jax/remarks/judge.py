"""What judges remarks: a language model (`agent`), or a script that a person wrote."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import Document, UserError
from pbr_jax.llm.protocol import check_text
from pbr_jax.remarks.log import Remark

Verdict = Literal["correct", "incorrect", "unknown"]
_CHOICES = {
    "verdict": ("correct", "incorrect", "unknown"),
    "route": ("shared", "personal"),
    "operation": ("add", "modify", "hide"),
}
_FIELDS = {"remark", "summary", "document", *_CHOICES}


class Judgement(NamedTuple):
    """Whether a remark is right, whose store it belongs into, and what it does there.

    `target`: the place among the documents shown of the one that is modified or hidden. `evidence`: what the
    judgement rests on, as JSON, without texts.
    """

    verdict: Verdict
    route: Literal["shared", "personal"] = "personal"
    operation: Literal["add", "modify", "hide"] = "add"
    target: int | None = None
    evidence: dict[str, Any] = {}  # noqa: RUF012


@runtime_checkable
class Judge(Protocol):
    """Makes a claim of a remark, and judges it."""

    @property
    def name(self) -> str:
        """Which model or script it is."""
        ...

    @property
    def prompt_hash(self) -> str:
        """The hash of its wording."""
        ...

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
