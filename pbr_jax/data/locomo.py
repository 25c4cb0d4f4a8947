"""LoCoMo: ten long conversations and questions about them, one JSON file is a split.

Maharana et al., "Evaluating Very Long-Term Conversational Memory of LLM Agents", 2024,
https://arxiv.org/abs/2402.17753, in the format of https://github.com/snap-research/locomo. A conversation is
the user, and the unit, of all questions about it. A document is a session of both speakers, or with
`benchmark.form turns` a turn. A picture is read as its caption, as the official code shows it. A question
comes after the last session.

The official answer to an adversarial question is that nothing is mentioned; the official scorer looks for
"not mentioned" or "no information available" in an answer, and so does subspan_em. What the question tempts
to answer is one of its two options, as in the official prompt. Evidence recall counts its evidence as
that of any question, as the official scorer does. Questions whose evidence names no turn are not scored;
the official scorer gives them 1. It counts a session once for each turn of evidence in it, here once.
"""

from collections.abc import Iterator

from pbr_jax.base.types import Example
from pbr_jax.data import conversations, json_stream, users
from pbr_jax.data.reader import Reader, json_files, named
from pbr_jax.data.records import Note, Record, moment_after
from pbr_jax.options import Benchmark

CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
NOTHING = ("Not mentioned in the conversation", "Not mentioned", "No information available")


def _all(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    (path,) = json_files(benchmark)[benchmark.split]
    for _, record in named(json_stream.records(path), "sample_id"):
        user = users.of_person(record, "sample_id", benchmark)
        yield from _examples(record, user, note, turns=benchmark.form == "turns")


def _examples(record: Record, user: str, note: Note, *, turns: bool) -> Iterator[Example]:
    sessions = conversations.sessions(record.record("conversation"), "text")
    history = conversations.documents(sessions, user, turns=turns)
    evidence = conversations.Evidence(sessions, user, turns=turns)
    for number, question in enumerate(record.records("qa")):
        category = conversations.category(question, CATEGORIES)
        text, relevant = question.text("question"), evidence.groups(question, note)
        trap = question.text("adversarial_answer") if question.has("adversarial_answer") else ""
        adversarial = category == "adversarial"
        yield Example(
            id=f"{user}_{number}",
            user_id=user,
            query=text,
            input=text,
            target=NOTHING[0] if adversarial else question.text("answer"),
            alternatives=NOTHING[1:] if adversarial else (),
            options=tuple(sorted((NOTHING[0], trap))) if adversarial and trap else (),
            profile=history,
            time=moment_after(history),
            relevant=relevant,
            category=category,
            scored=bool(relevant),
            unit=user,
        )


READERS = {
    "locomo": Reader(
        expected="a LoCoMo JSON file (locomo10.json), or a folder of such files, whose stems name the splits",
        layout=json_files,
        examples=_all,
        forms=("official", "turns"),
    )
}
