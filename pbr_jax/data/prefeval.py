"""PrefEval: does a system follow a preference that its user stated many turns ago?

Zhao et al., "Do LLMs Recognize Your Preferences? Evaluating Personalized Preference Following in LLMs", 2025,
https://arxiv.org/abs/2502.09597 (data: CC BY-NC 4.0). The root is the released `benchmark_dataset` folder.

A question is a user with one conversation: the turns that state the preference, then the first
`benchmark.inter_turns` turns of `filtered_inter_turns.json`, the same for all, as the released code places
them. A document is a turn: what the user said, and the assistant's answer. The split is the form of the
preference: `explicit`, a sentence of the user's (the paper has each model answer it; nothing is released, so
the turn has no answer), or `choice_based`, two turns in which the user picks one of four proposals. Those
turns are relevant. The unit and category is the topic.

The answers to choose from are those of `mcq_options`, where the right one always comes first: here they are
in alphabetical order. Questions are matched by preference and question or, where the release words the
preference otherwise ("absolutely"), by a question that stands once among the options of its topic.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.data import json_stream, users
from pbr_jax.data.reader import Reader
from pbr_jax.data.records import Note, Record
from pbr_jax.options import Benchmark

FORMS_OF_PREFERENCE = {"explicit": "explicit_preference", "choice_based": "implicit_preference/choice-based"}
INTER_TURNS, OPTIONS = "filtered_inter_turns.json", "mcq_options"

_Turn = tuple[str, str]  # what the user said, and the assistant's answer, "" where there is none


def _layout(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """Of each form of preference the topics, the options of those that have any, and the turns between."""
    root, found = Path(benchmark.root), {}
    for split in FORMS_OF_PREFERENCE:
        if topics := _topics(benchmark, split):
            options = (root / OPTIONS / path.name for path in topics)
            found[split] = (*topics, *filter(os.path.lexists, options), root / INTER_TURNS)
    return found


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions topic by topic, in file order; those without options are left out and noted."""
    root, count = Path(benchmark.root), benchmark.inter_turns
    between = _between(root / INTER_TURNS, count)
    topics = _topics(benchmark, benchmark.split)
    for path in sorted(set((root / OPTIONS).glob("*.json")) - {root / OPTIONS / p.name for p in topics}):
        note(f"{path}: no preferences of this topic are there, so its options are left out")
    for path in topics:
        options, lacking = _options(root / OPTIONS / path.name), 0
        for place, record in enumerate(json_stream.records(path)):
            preference, question = record.text("preference"), record.text("question")
            offered = options.get((preference, question)) or options.get((None, question))
            if offered:
                yield _example(record, f"{path.stem}_{place}", offered, between, benchmark)
            lacking += not offered
        if lacking:
            note(f"{path}: {lacking} questions have no options in {OPTIONS}, left out")


def _topics(benchmark: Benchmark, split: str) -> list[Path]:
    return sorted(Path(benchmark.root, FORMS_OF_PREFERENCE[split]).glob("*.json"))


def _example(
    record: Record, name: str, offered: tuple[str, ...], between: list[_Turn], benchmark: Benchmark
) -> Example:
    place = Record({"id": name}, record.file, record.label)
    user, question = users.of_question(place, "id", benchmark), record.text("question")
    stated = _chosen(record) if benchmark.split == "choice_based" else [(record.text("preference"), "")]
    told = [(f"preference_{i}", turn) for i, turn in enumerate(stated)]
    told += [(f"turn_{i}", turn) for i, turn in enumerate(between)]
    return Example(
        id=name,
        user_id=user,
        query=question,
        input=question,
        target=offered[0],
        profile=tuple(_document(id, user, turn) for id, turn in told),
        relevant=tuple((id,) for id, _ in told[: len(stated)]),
        category=record.file.stem,
        unit=record.file.stem,
        options=tuple(sorted(offered)),
    )


def _document(id: str, user: str, turn: _Turn) -> Document:
    said, answer = turn
    text = f"User: {said}" + (f"\nAssistant: {answer}" if answer else "")
    return Document(id, user, text, {"text": text, "user": said, "assistant": answer})


def _chosen(record: Record) -> list[_Turn]:
    """The two turns in which the user picks a proposal that suits the preference."""
    told = record.record("conversation")
    first = told.text("query"), told.text("assistant_options")
    return [first, (told.text("user_selection"), told.text("assistant_acknowledgment"))]


def _between(path: Path, count: int) -> list[_Turn]:
    """The first turns of all conversations, one conversation after the other."""
    turns: list[_Turn] = []
    for record in json_stream.records(path):
        messages = record.records("conversation")
        for pair in zip(messages[::2], messages[1::2]):
            for message, role in zip(pair, ("user", "assistant")):
                if (found := message.text("role")) != role:
                    raise message.fault("role", f"{found!r:.60}", f"{role!r}, turn by turn")
            turns.append((pair[0].text("content"), pair[1].text("content")))
    if len(turns) < count:
        raise UserError(
            f"{path}: found {len(turns)} turns, wanted {count} to stand between preference and question; "
            "lower benchmark.inter_turns"
        )
    return turns[:count]


def _options(path: Path) -> dict[tuple[str | None, str], tuple[str, ...]]:
    """The answers to choose from, the right one first, by preference and question; by None and the question
    where it stands once, () where it stands more often."""
    known: dict[tuple[str | None, str], tuple[str, ...]] = {}
    for record in json_stream.records(path) if os.path.lexists(path) else ():
        question, offered = record.text("question"), _offered(record)
        known[record.text("preference"), question] = offered
        known[None, question] = () if (None, question) in known else offered
    return known


def _offered(record: Record) -> tuple[str, ...]:
    field = "classification_task_options"
    items = [record.inner({"": item}, f"{field}[{i}]").text("") for i, item in enumerate(record.items(field))]
    offered = tuple(item.strip() for item in items)
    if len(set(offered)) < max(2, len(offered)) or "" in offered:
        raise record.fault(
            field, f"{list(offered)!r:.80}", "two or more different answers, the right one first"
        )
    return offered


READERS = {
    "prefeval": Reader(
        expected="PrefEval's benchmark_dataset folder, "
        f"with {OPTIONS}, {INTER_TURNS} and explicit_preference",
        layout=_layout,
        examples=_examples,
        question_users=True,
    )
}
