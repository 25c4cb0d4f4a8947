"""PersonaBench: two communities, three people each with private data, four noise levels.

Tan et al., "PersonaBench: Evaluating AI Models on Understanding Personal Information through
Accessing (Synthetic) Private User Data", 2025. A document is a segment: a session of a conversation,
of a chat with an assistant or of shopping. Ground truth names, for each value of the answer, the
segments that alternatively hold it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbr_jax.base.types import Document, Example
from pbr_jax.data import json_stream
from pbr_jax.data.reader import Reader, named
from pbr_jax.data.records import Note, Record, moment_after, profile, whole
from pbr_jax.options import Benchmark

SPLITS = ("noise_0.0", "noise_0.3", "noise_0.5", "noise_0.7")

_PEOPLE = 3  # of the ten people of a community, only the first three have private data
_SOURCES = ("conversation", "user_ai_interaction", "purchase_history")  # the order of a person's documents
_PARENTS = (".", "synthetic_data", "eval_data_v1/synthetic_data", "eval_data/eval_data_v1/synthetic_data")

_Documents = tuple[Document, ...]


def _layout(benchmark: Benchmark) -> dict[str, list[Path]]:
    """Of each noise level the questions, ground truth and private data of all communities."""
    folders = _communities(benchmark)
    return {
        split: sorted(path for folder in folders for path in _files(folder, split).values())
        for split in SPLITS
        if any((folder / "private_data" / split).is_dir() for folder in folders)
    }


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions, community by community and person by person."""
    seen: set[str] = set()
    for folder in _communities(benchmark):
        paths = _files(folder, benchmark.split)
        truth = {record.name("q_id"): record for record in json_stream.records(paths["truth"])}
        histories = _histories(paths, folder.name, note)
        for name, person in list(named(json_stream.records(paths["questions"]), "Name"))[:_PEOPLE]:
            user = f"{folder.name}/{name}"
            history = _history(person, histories, paths["conversation"])
            for question in person.record("Eval_Info").records("qa"):
                id = question.name("q_id")
                if id in seen:
                    raise question.fault("q_id", f"the id {id!r} a second time", "unique ids")
                if id not in truth:
                    found = f"no ground truth for {id!r} in {paths['truth'].name}"
                    raise question.fault("q_id", found, "one for every question")
                seen.add(id)
                yield _example(question, truth[id], user, history)


def _communities(benchmark: Benchmark) -> list[Path]:
    """The community folders under the first parent that has any."""
    for parent in _PARENTS:
        paths = (Path(benchmark.root) / parent).glob("community_*")
        if folders := sorted(path for path in paths if path.is_dir()):
            return folders
    return []


def _files(community: Path, split: str) -> dict[str, Path]:
    questions = community / "eval_info"
    private = community / "private_data" / split
    return {
        "questions": questions / "eval_info_all.json",
        "truth": questions / f"qa_gt_context_all_{split}.json",
        **{source: private / f"{source}_data_all.json" for source in _SOURCES},
    }


def _histories(paths: dict[str, Path], community: str, note: Note) -> dict[str, _Documents]:
    """The documents of each person: conversations, then chats, then purchases, in file order."""
    entries: dict[str, list[tuple[Record, Document]]] = {}
    for source in _SOURCES:
        for name, person in named(json_stream.records(paths[source]), "Name"):
            user = f"{community}/{name}"
            segments = _segments(person, source)
            entries.setdefault(name, []).extend(
                (record, _document(record, source, user)) for record in segments
            )
    return {name: profile(mine, note) for name, mine in entries.items()}


def _history(person: Record, histories: dict[str, _Documents], path: Path) -> _Documents:
    if (name := person.name("Name")) not in histories:
        raise person.fault(
            "Name", f"no private data of {name!r} in {path.parent}", "data of every asking person"
        )
    return histories[name]


def _segments(person: Record, source: str) -> list[Record]:
    parts = person.records("Data")
    if source != "conversation":
        return parts
    return [segment for part in parts for segment in part.records("Conversations")]


def _document(record: Record, source: str, user: str) -> Document:
    """A segment as the retrievers of the benchmark and of PBR index it.

    The text is compact JSON of the record without its ids, with non-ASCII letters escaped: with this
    very string, dense retrieval by all-MiniLM-L6-v2 has the published recall@5 .3783 and ndcg@5 .3074.
    """
    kept = {key: value for key, value in record.values.items() if key not in ("segment_id", "session")}
    if not record.items(source):
        raise record.fault(source, "an empty list", "the document's content")
    return Document(
        id=record.name("segment_id"),
        user_id=user,
        text=json.dumps(kept, separators=(",", ":")),
        fields={"source": source, **record.strings("segment_id", "session")},
        **record.dates("time"),
    )


def _example(question: Record, truth: Record, user: str, history: _Documents) -> Example:
    category = _category(question)
    relevant = _relevant(truth, {document.id for document in history})
    text = question.text("question")
    return Example(
        id=question.name("q_id"),
        user_id=user,
        query=text,
        input=text,
        target=_answer(question.value("answer")),
        profile=history,
        time=moment_after(history),
        relevant=relevant,
        category=category,
        scored=category != "Subjective" and bool(relevant),
    )


def _category(question: Record) -> str:
    """The rows of the published tables: preferences are split by difficulty, social questions are not."""
    name = question.text("type").removesuffix(" information")
    return f"{name}-{question.text('difficulty')}" if name == "Preference" else name


def _relevant(truth: Record, known: set[str]) -> tuple[tuple[str, ...], ...]:
    values = truth.record("segment_id")
    groups = tuple(tuple(values.names(value)) for value in values.values)
    for value, group in zip(values.values, groups):
        if not group:
            raise values.fault(value, "an empty list", "the segments that hold the value")
        if unknown := [name for name in group if name not in known]:
            raise values.fault(value, f"the segment {unknown[0]!r}", "segments of the asking person")
    return groups


def _answer(value: Any) -> str | None:
    """The answer in words: parts of a list by commas, pairs as "height: 170 cm"; null is no answer."""
    if value is None:
        return None
    if isinstance(value, list):
        parts = [part for part in map(_answer, value) if part is not None]
    elif isinstance(value, dict):
        answers = ((key, _answer(part)) for key, part in value.items())
        parts = [f"{key}: {part}" for key, part in answers if part is not None]
    else:
        return whole(str(value))
    return ", ".join(parts) if parts or not value else None


READERS = {
    "personabench": Reader(
        expected="the synthetic_data folder with community_0 and community_1, or a folder above it",
        layout=_layout,
        examples=_examples,
    )
}
