"""Open-domain questions: Natural Questions, TriviaQA, SQuAD, XQuAD, WebQuestions, Baidu's WebQA.

Read from folders that the TensorFlow Datasets catalogue prepared in the array_record format, or from
official files (`question_sets`). The sets know no users: every question is a user of its own with an empty
history, named as in LaMP's user split. The unit of SQuAD's and XQuAD's questions is the article. Passages
that a set carries (SQuAD's paragraphs, WebQA's and TriviaQA's evidence) are nobody's history; questions may
be answered from `benchmark.passages` (`data.passages`), by which relevance and the answers' language are
known too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pbr_jax.base.types import Example, UserError
from pbr_jax.data import json_stream, passages, question_sets, tfds_folder, users
from pbr_jax.data.question_sets import (
    ALIASES,
    FILES,
    Question,
    asked,
    paragraph_id,
    squad_questions,
    strings,
    web_qa_questions,
)  # fmt: skip
from pbr_jax.data.reader import Reader
from pbr_jax.data.records import Note, Record
from pbr_jax.data.tfds_folder import Folder, Row, text, texts
from pbr_jax.options import Benchmark


def _nq_row(row: Row) -> Question:
    return Question("", text(row["question"]), texts(row["answer"]))


def _web_row(row: Row) -> Question:
    return Question("", text(row["question"]), texts(row["answers"]))


def _squad_row(row: Row) -> Question:
    """SQuAD 2.0 holds questions that its passage does not answer: their answer is no text at all."""
    answers = texts(row["answers"]["text"]) or [""]
    held = (paragraph_id(text(row["context"])),)
    return Question(text(row["id"]), text(row["question"]), answers, held, text(row["title"]).strip())


def _trivia_row(row: Row) -> Question:
    answer = row["answer"]
    names = [text(answer["value"]), *texts(answer["aliases"]), *texts(answer["normalized_aliases"])]
    withheld = names == ["<unk>"]
    return Question(text(row["question_id"]), text(row["question"]), None if withheld else names)


def _nq_questions(path: Path) -> Iterator[Question]:
    for record in _records(path):
        yield Question("", asked(record, "question"), strings(record, "answer"))


def _web_questions(path: Path) -> Iterator[Question]:
    for record in _records(path):
        yield Question(record.name("qId"), asked(record, "qText"), strings(record, "answers"))


def _records(path: Path) -> Iterator[Record]:
    return (json_stream.records if json_stream.is_list(path) else json_stream.lines)(path)


@dataclass(frozen=True, kw_only=True)
class _Set:
    """A question set: TFDS's name of it and the row's meaning, and of its official file that."""

    dataset: str = ""
    row: Callable[[Row], Question] | None = None
    questions: Callable[[Path], Iterator[Question]] | None = None


_SETS = {
    "nq_open": _Set(dataset="natural_questions_open", row=_nq_row, questions=_nq_questions),
    "trivia_qa": _Set(dataset="trivia_qa", row=_trivia_row),
    "squad": _Set(dataset="squad", row=_squad_row, questions=squad_questions),
    "xquad": _Set(questions=squad_questions),
    "web_questions": _Set(dataset="web_questions", row=_web_row, questions=_web_questions),
    "web_qa": _Set(questions=web_qa_questions),
}


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """A question without an id gets its place in the split, "dev-7"; an id that occurs again, as TriviaQA's
    do, gets a suffix ("id#2"). Where the passages know the questions, the answers, and the passages that hold
    them, are as these say. Raises UserError where they know others, but not this one.
    """
    seen: set[str] = set()
    known = passages.counterparts(benchmark)
    for position, question in enumerate(_questions(benchmark)):
        name = users.unique(question.id or f"{benchmark.split}-{position}", seen)
        if name != (question.id or name):
            note(f"{benchmark.root}: the question {question.id!r} occurs again, kept as {name}")
        found = replace(question, held=()) if known is None else known.of(question)
        yield _example(name, found, benchmark)


def _questions(benchmark: Benchmark) -> Iterator[Question]:
    question_set, folder = _SETS[benchmark.name], _folder(benchmark)
    if folder is not None and question_set.row is not None:
        shards = next(name for name in ALIASES[benchmark.split] if name in folder.shards)
        return map(question_set.row, tfds_folder.rows(folder, shards))
    (path,) = _layout(benchmark)[benchmark.split]
    assert question_set.questions is not None
    return question_set.questions(path)


def _example(name: str, question: Question, benchmark: Benchmark) -> Example:
    if question.answers == []:
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
        **question.fields,
    )


def _layout(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """The shards, or the one file, of each split, `dev` for what the data call validation or val; of XQuAD
    a split is a language."""
    if (folder := _folder(benchmark)) is None:
        return {split: (path,) for split, path in question_sets.files(benchmark.name, benchmark.root).items()}
    named = {split: [name for name in names if name in folder.shards] for split, names in ALIASES.items()}
    return {split: folder.shards[names[0]] for split, names in named.items() if names}


def _folder(benchmark: Benchmark) -> Folder | None:
    if not (wanted := _SETS[benchmark.name].dataset):
        return None
    folder = tfds_folder.find(benchmark.root, wanted)
    if folder is not None and folder.dataset != wanted:
        raise UserError(
            f"{benchmark.root}: found the dataset {folder.dataset}, wanted {wanted} for {benchmark.name}; "
            "set --benchmark.name or another root"
        )
    return folder


def _expected(name: str) -> str:
    prepared = [f"TFDS's {_SETS[name].dataset} prepared as array_record"] if _SETS[name].dataset else []
    return ", or ".join([*prepared, *(file.format("{split}") for file in FILES.get(name, ())[:1])])


READERS = {
    name: Reader(
        task="open_qa", expected=_expected(name), layout=_layout, examples=_examples, question_users=True
    )
    for name in _SETS
}
