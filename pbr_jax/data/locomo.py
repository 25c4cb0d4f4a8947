"""LoCoMo: ten long conversations and questions about them, one JSON file is a split.

Maharana et al., "Evaluating Very Long-Term Conversational Memory of LLM Agents", 2024,
https://arxiv.org/abs/2402.17753, in the format of https://github.com/snap-research/locomo. A conversation is
the user, and the unit, of all questions about it. A document is a session of both speakers, or with
`benchmark.form turns` a turn. A picture is read as its caption, as the official code shows it. A question
comes after the last session.

An adversarial question has no target: its official answer is that nothing is mentioned, one text for all of
them, whose likelihood and worth say nothing about memory. Evidence recall counts its evidence as that of any
question, as the official scorer does. Questions whose evidence names no turn are not scored; the official
scorer gives them 1. It counts a session once for each turn of evidence in it, here once.
"""

from collections.abc import Iterator

from pbr_jax.base.types import Example
from pbr_jax.data import conversations, json_stream, users
from pbr_jax.data.reader import Reader, json_files, named
from pbr_jax.data.records import Note
from pbr_jax.options import Benchmark

CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}


def _all(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    (path,) = json_files(benchmark)[benchmark.split]
    for _, record in named(json_stream.records(path), "sample_id"):
        user = users.of_person(record, "sample_id", benchmark)
        found = conversations.sessions(record.record("conversation"), "text")
        turns = benchmark.form == "turns"
        yield from conversations.questions(record, found, user, CATEGORIES, note, turns=turns)


READERS = {
    "locomo": Reader(
        expected="a LoCoMo JSON file (locomo10.json), or a folder of such files, whose stems name the splits",
        layout=json_files,
        examples=_all,
        forms=("official", "turns"),
    )
}
