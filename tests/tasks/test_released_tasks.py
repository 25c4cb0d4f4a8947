"""The benchmarks' own tasks: every prompt and every reading of an answer is as it was recorded."""

import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import pbr_jax.tasks
from pbr_jax.base.types import Document, Example
from pbr_jax.data import BENCHMARKS, Benchmark, task
from pbr_jax.tasks import Wording, released
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.prompts import write

FIELDS = {
    "title": "A title of few words", "text": "The text of a record, which says something. " * 3,
    "abstract": "An abstract. " * 5, "tag": "sci-fi", "description": "A film about robots.", "score": "4",
    "overall": "5.0", "summary": "Good one", "reviewText": "I liked it. " * 9,
    "content": "A post === with marks. " * 4, "date": "2015-03",
}  # fmt: skip
BUDGETS = ((2000, 0.6), (120, 0.6), (60, 0.3), (45, 0.9), (20, 0.5))
INPUT = (
    'Write a thing for this: "something long enough to be cut where the budget is small" '
    "and so on, at the end"
)
OUTPUTS = [
    "", "[1]", "2", "the answer is [2], not [1]", "answer: 1", "Answer1", "sci fi", "Sci\u2011Fi and comedy",
    "true-story film", "4", "4.5 of 5", "score: 3", "10", "05", "0.5 or 5.3 or 2", "5.0", "1,5 3", "-3",
    'headline: "A day"\nmore', "article: foo\nheadline: bar\nbaz", "Here is one:\n'quoted'", "title: x",
    "tweet: y\nz", "post: a\nb", "summary: a\npost: b\nc", "<think>no</think>answer: yes\nno", "<think>no",
    "passage: p\nanswer: q\nr", "record: x\nanswer: y", "title: t\nabstract: u\nv",
    "product: t\nreview: u\nv", "question: t\nanswer: u\nv", "classic based on a book", "  \n 'x' \n",
    "tag: dystopia", "dark comedy comedy", "[2]1", "4.55.6", "\u0664 3", "5.", "review: fine\nscore: 5",
]  # fmt: skip

# Recorded before the wording became data; open_qa's since its prompts show the titles of passages.
RECORDED = {
    "lamp_1": {"own": "f16ef89060d2203b", "lamp": "f23a8ddcbcfda459", "answers": "20adb2a871bd0b9f"},
    "lamp_2": {"own": "23ff048c1e79481a", "lamp": "9402c1becbebce48", "answers": "90111c973c2cc1e5"},
    "lamp_3": {"own": "9888eb0954e3c34f", "lamp": "10f8cc6edb47d9d9", "answers": "541cb31e20b6cd20"},
    "lamp_4": {"own": "3744b7c18712105d", "lamp": "5f517a0c74b2e3fc", "answers": "d355413cb67b3bef"},
    "lamp_5": {"own": "caf11bd243673716", "lamp": "353060faebcd558e", "answers": "cb2b134c19d9b6c8"},
    "lamp_7": {"own": "d8e3b31d4523991a", "lamp": "dfc88e6a7fea964a", "answers": "264a96e5adb1b7ba"},
    "longlamp_abstract": {
        "own": "0a7206d79ad8114e",
        "lamp": "018f2a4643f91901",
        "answers": "74b72f8908bc1b40",
    },
    "longlamp_review": {"own": "2051edc1adecbbb2", "lamp": "0eeb32271bd83c21", "answers": "599542b93229b741"},
    "longlamp_topic": {"own": "ea6a6a329e8417c3", "lamp": "b4748a84c966ef2f", "answers": "dbfcce5b6bcf961d"},
    "personabench": {"own": "ee03a0643479725f", "answers": "7c23de3e34971265"},
    "longmemeval": {"own": "247c221cb0efed88", "answers": "7c23de3e34971265"},
    "locomo": {"own": "ae597753698a9f9b", "answers": "72230544bd9b4a77"},
    "realtalk": {"own": "7373d24adc241797", "answers": "72230544bd9b4a77"},
    "realtalk_persona": {"own": "b3964efd3474a8fc", "answers": "009592c4287a5595"},
    "lucid": {"own": "14431abca1b9ee7a", "answers": "7c23de3e34971265"},
    "personamem": {"own": "13b496f55936012f", "answers": "29437ca6b43efed1"},
    "open_qa": {"own": "a07821707d39feef", "answers": "72230544bd9b4a77"},
    "synthetic": {"own": "d13801298d5abb46", "lamp": "5f517a0c74b2e3fc", "answers": "e17fab43d77b34da"},
    "sgd": {"own": "90af77ea9f0990f8", "answers": "63420eae04d8b57c"},
    "multiwoz": {"own": "bdf711259ee4c811", "answers": "63420eae04d8b57c"},
    "own": {"own": "3e4e39f193a193df", "answers": "7c23de3e34971265"},
    "prefeval": {"own": "d5ecf340c359631c", "answers": "29437ca6b43efed1"},
}


def documents() -> list[Document]:
    def document(number: int, fields: dict[str, str], user: str = "u", time: float | None = None) -> Document:
        return Document(f"d{number}", user, f"Text that stands in {number}.", fields, time)

    def without(*names: str) -> dict[str, str]:
        return {name: text for name, text in FIELDS.items() if name not in names}

    return [
        document(0, FIELDS, time=1.4e9),
        document(1, without("title", "date"), time=1.2e9),
        document(2, without("text", "abstract", "description", "reviewText", "content")),
        document(3, {}, time=1.1e9),
        document(4, without("tag", "score", "summary", "overall"), user="w"),
        document(5, {name: text * 4 for name, text in FIELDS.items()}),
    ]


def first_words(text: str, count: int) -> str:
    ends = [match.end() for match in re.finditer(r"\S+", text)][: max(count, 0)]
    return text[: ends[-1]] if ends else ""


def prompts(wording: Wording) -> list[Any]:
    """Prompts of no document to six, within budgets that cut none of them, some, and all."""
    example = Example("q", "u", "something", INPUT, "t")
    made = []
    for count, (max_tokens, gamma) in itertools.product(range(7), BUDGETS):
        made.append(
            write(
                wording, example, documents()[:count], count=lambda text: len(text.split()),
                truncate=first_words, max_tokens=max_tokens, gamma=gamma,
            )[:3]  # the text about the user is empty
        )  # fmt: skip
    return made


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def found(name: str) -> dict[str, str]:
    of = released(name)
    forms = {form: digest(prompts(wording)) for form, wording in of.wordings.items()}
    return {**forms, "answers": digest([parse_answer(of.answers, text) for text in OUTPUTS])}


@pytest.mark.parametrize("name", RECORDED)
def test_prompts_and_answers_are_as_recorded(name: str) -> None:
    assert found(name) == RECORDED[name]


def test_every_file_is_recorded_and_of_a_benchmark() -> None:
    files = {path.stem for path in Path(pbr_jax.tasks.__file__).parent.glob("*.toml")}
    assert files == RECORDED.keys() == {task(Benchmark(name=name)).name for name in BENCHMARKS}
