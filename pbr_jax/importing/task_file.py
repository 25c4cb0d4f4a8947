"""The task of an imported table, as a TOML file that is meant to be edited."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pbr_jax.importing.columns import Columns

_LABELS = 20  # different answers, at most, of a task with labels
_EACH = 5  # questions of each label, on average, at least
_SHORT = 40  # characters of a label


class TaskFile(NamedTuple):
    """Its kind, and its text."""

    kind: str
    text: str


def of(
    targets: Counter[str], questions: int, shown: Sequence[str], columns: Columns, instruction: str
) -> TaskFile:
    """The task: few short answers that recur are labels, numbers among them a scale, all else is written."""
    kind, labels = _kind(targets, questions)
    if not columns.output:
        kind, labels = "retrieval", []
    metrics = {
        "generation": ["rouge1", "rougeL", "meteor"],
        "classification": ["accuracy", "f1_macro"],
        "rating": ["mae", "rmse", "accuracy"],
        "retrieval": ["recall@1", "recall@5", "recall@10", "ndcg@5", "ndcg@10"],
    }[kind]
    longest = max(map(len, targets), default=0)
    wanted = instruction or "Write what this person would write next."
    cue = f"{columns.output or 'answer'}:"
    pieces = ["date: {date}", *(f"{_label(name)}: {{{name}}}" for name in shown)]
    lines = [
        "# What is asked, and how prompts word it. Edit what you like; docs/data_format.md explains it.",
        f"kind = {json.dumps(kind)}",
        f"metrics = {json.dumps(metrics)}",
        *([f"labels = {json.dumps(labels, ensure_ascii=False)}"] if labels else []),
        *(['answer = "text"'] if kind in ("generation", "retrieval") else []),
        f"max_new_tokens = {min(256, max(16, longest // 3))}",
        f"fields = {json.dumps(['text', *shown], ensure_ascii=False)}",
        f"document_target = {json.dumps(columns.output, ensure_ascii=False)}"
        if columns.output in shown
        else "",
        "",
        "[prompt.own]",
        'system = "You answer for one particular person, as that person would. Reply with the answer only."',
        'history = "Earlier entries of {who}:"',
        f"document = {json.dumps(pieces, ensure_ascii=False)}",
        f"main = {json.dumps(shown[0], ensure_ascii=False)}",
        f"instruction = {json.dumps(wanted, ensure_ascii=False)}",
        f"cue = {json.dumps(cue, ensure_ascii=False)}",
    ]
    return TaskFile(kind, "\n".join(line for line in lines if line is not None) + "\n")


def _kind(targets: Counter[str], questions: int) -> tuple[str, list[str]]:
    different = len(targets)
    few = 2 <= different <= _LABELS and sum(targets.values()) >= _EACH * different
    if not few or any(len(text) > _SHORT or "\n" in text for text in targets):
        return "generation", []
    if all(text.isdecimal() for text in targets):
        return "rating", sorted(targets, key=int)
    return "classification", sorted(targets)


def _label(name: str) -> str:
    return name.replace("{", "(").replace("}", ")")
