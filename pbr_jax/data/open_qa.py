"""Open-domain questions with several accepted answers: Natural Questions, TriviaQA, SQuAD, WebQuestions.

Read from folders that the TensorFlow Datasets catalogue prepared in the array_record format, or from the
official files of NQ-open, SQuAD 1.1 and WebQuestions. The sets know no users: every question is a user of its
own with an empty history, named as in LaMP's user split, so a bootstrap over users is one over questions.
Passages that a set carries (SQuAD's paragraphs, TriviaQA's evidence) are nobody's history and are left out;
what questions may be answered from is `benchmark.passages` (`data.passages`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pbr_jax.data import json_stream, passages, tfds_folder, users
from pbr_jax.data.records import Note, Record, kind, whole
from pbr_jax.data.rows import Row, text, texts
from pbr_jax.data.tfds_folder import Folder
from pbr_jax.options import Benchmark
from pbr_jax.types import Example, UserError


@dataclass(frozen=True)
class _Question:
    """A question as released: `id` is empty where the set has none, `answers` None where withheld.

    `paragraph` is what it was written for, where the set says so.
    """

    id: str
    text: str
    answers: list[str] | None
    paragraph: str = ""


def _nq_row(row: Row) -> _Question:
    return _Question("", text(row["question"]), texts(row["answer"]))


def _web_row(row: Row) -> _Question:
    return _Question("", text(row["question"]), texts(row["answers"]))


def _squad_row(row: Row) -> _Question:
    """SQuAD 2.0 holds questions that its passage does not answer: their answer is no text at all."""
    answers = texts(row["answers"]["text"]) or [""]
    return _Question(text(row["id"]), text(row["question"]), answers, text(row["context"]))


def _squad_questions(path: Path) -> Iterator[_Question]:
    for paragraph in passages.paragraphs(path):
        for question in paragraph.records("qas"):
            answers = [answer.text("text") for answer in question.records("answers")] or [""]
            yield _Question(
                question.name("id"), _asked(question, "question"), answers, paragraph.text("context")
            )


def _trivia_row(row: Row) -> _Question:
    answer = row["answer"]
    names = [text(answer["value"]), *texts(answer["aliases"]), *texts(answer["normalized_aliases"])]
    withheld = names == ["<unk>"]
    return _Question(text(row["question_id"]), text(row["question"]), None if withheld else names)


def _nq_questions(path: Path) -> Iterator[_Question]:
    for record in _records(path):
        yield _Question("", _asked(record, "question"), _strings(record, "answer"))


def _web_questions(path: Path) -> Iterator[_Question]:
    for record in _records(path):
        yield _Question(record.name("qId"), _asked(record, "qText"), _strings(record, "answers"))


def _records(path: Path) -> Iterator[Record]:
    return (json_stream.records if json_stream.is_list(path) else json_stream.lines)(path)


def _asked(record: Record, key: str) -> str:
    if not (question := record.text(key)).strip():
        raise record.fault(key, "an empty string", "a question")
    return question


def _strings(record: Record, key: str) -> list[str]:
    values = record.items(key)
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise record.fault(key, f"{kind(wrong[0])} in the list", "strings alone")
    return [whole(value) for value in values]


@dataclass(frozen=True, kw_only=True)
class _Set:
    """A question set: TFDS's name of it, the row's meaning, and its official file, if we read that."""

    dataset: str
    row: Callable[[Row], _Question]
    file: str = ""
    questions: Callable[[Path], Iterator[_Question]] | None = None  # of the file


_SETS = {
    "nq_open": _Set(
        dataset="natural_questions_open", row=_nq_row, file="NQ-open.{}.jsonl", questions=_nq_questions
    ),
    "trivia_qa": _Set(dataset="trivia_qa", row=_trivia_row),
    "squad": _Set(dataset="squad", row=_squad_row, file="{}-v1.1.json", questions=_squad_questions),
    "web_questions": _Set(dataset="web_questions", row=_web_row, file="{}.json", questions=_web_questions),
}
BENCHMARKS = dict.fromkeys(_SETS, "open_qa")
FORMS = ("official",)

_ALIASES = {
    "train": ("train", "trainmodel"),
    "dev": ("dev", "validation", "val"),
    "devtest": ("devtest",),
    "test": ("test",),
}


def expected(benchmark: Benchmark) -> str:
    """What the root should hold, for error messages."""
    question_set = _SETS[benchmark.name]
    files = f", or {question_set.file.format('{split}')}" if question_set.file else ""
    return f"TFDS's {question_set.dataset} prepared as array_record{files}"


def splits(benchmark: Benchmark) -> tuple[str, ...]:
    """The splits that are there, `dev` for what the data call validation or val."""
    sources = _sources(benchmark)
    return tuple(split for split, names in _ALIASES.items() if any(name in sources for name in names))


def files(benchmark: Benchmark) -> tuple[Path, ...]:
    """The shards, or the one file, of the split."""
    return _sources(benchmark)[_name(benchmark)]


def question_users(benchmark: Benchmark) -> bool:
    """True: every question is a user by itself."""
    return True


def examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions in file order, one at a time.

    A question without an id gets its place in the split, "dev-7"; an id that occurs again, as TriviaQA's
    do, gets a suffix ("id#2").
    """
    seen: set[str] = set()
    for position, question in enumerate(_questions(benchmark)):
        released = question.id or f"{benchmark.split}-{position}"
        name = users.unique(released, seen)
        if name != released:
            note(f"{benchmark.root}: the question {released!r} occurs again, kept as {name}")
        yield _example(name, question, benchmark)


def _questions(benchmark: Benchmark) -> Iterator[_Question]:
    question_set, folder = _SETS[benchmark.name], _folder(benchmark)
    if folder is not None:
        return map(question_set.row, tfds_folder.rows(folder, _name(benchmark)))
    (path,) = files(benchmark)
    assert question_set.questions is not None
    return question_set.questions(path)


def _example(name: str, question: _Question, benchmark: Benchmark) -> Example:
    answers = list(dict.fromkeys(question.answers)) if question.answers is not None else [None]
    if not answers:
        raise UserError(
            f"{benchmark.root}: question {name!r} of the split {benchmark.split}: found no answer, wanted at "
            "least one; take the data as released"
        )
    record = Record({"id": name}, Path(benchmark.root), f"question {name!r}")
    return Example(
        id=name,
        user_id=users.of_question(record, "id", benchmark),
        query=question.text,
        input=question.text,
        target=answers[0],
        relevant=passages.relevant(benchmark, question.paragraph),
        alternatives=tuple(answers[1:]),  # type: ignore[arg-type]
    )


def _name(benchmark: Benchmark) -> str:
    """The data's name of the split."""
    sources = _sources(benchmark)
    return next(name for name in _ALIASES[benchmark.split] if name in sources)


def _sources(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """The files of each split by the data's name of it; empty where there are none."""
    if (folder := _folder(benchmark)) is not None:
        return dict(folder.shards)
    if not (file := _SETS[benchmark.name].file):
        return {}
    paths = {name: Path(benchmark.root) / file.format(name) for names in _ALIASES.values() for name in names}
    return {name: (path,) for name, path in paths.items() if path.is_file()}


def _folder(benchmark: Benchmark) -> Folder | None:
    wanted = _SETS[benchmark.name].dataset
    folder = tfds_folder.find(benchmark.root, wanted)
    if folder is not None and folder.dataset != wanted:
        raise UserError(
            f"{benchmark.root}: found the dataset {folder.dataset}, wanted {wanted} for {benchmark.name}; "
            "set --benchmark.name or another root"
        )
    return folder
