"""Question sets: folders of the TFDS catalogue's shapes, official files, and what an example holds."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark
from pbr_jax.data import passages, prepared

Splits = dict[str, list[dict[str, Any]]]


def catalogue(folder: Path, name: str, splits: Splits) -> Path:
    """A folder as the catalogue's own builder writes it, of the rows given."""
    builder: Any = tfds.builder(name, data_dir=folder, file_format="array_record")
    builder._split_generators = lambda _: {split: enumerate(rows) for split, rows in splits.items()}
    builder.download_and_prepare(download_dir=folder / "downloads")
    return Path(builder.data_dir)


NOTHING: dict[str, list[str]] = {"doc_source": [], "filename": [], "title": [], "wiki_context": []}
RESULTS: dict[str, list[Any]] = {
    "description": ["d"], "filename": ["f"], "rank": [1], "title": ["t"], "url": ["u"],
    "search_context": ["c"],
}  # fmt: skip


def trivia(name: str, value: str, *aliases: str) -> dict[str, Any]:
    answer = {
        "aliases": aliases, "normalized_aliases": [alias.lower() for alias in aliases], "type": "",
        "matched_wiki_entity_name": "", "normalized_matched_wiki_entity_name": "",
        "normalized_value": value.lower(), "value": value,
    }  # fmt: skip
    return {"question": f"{name}?", "question_id": name, "question_source": "s", "entity_pages": NOTHING,
            "search_results": RESULTS, "answer": answer}  # fmt: skip


def squad(name: str, *answers: str) -> dict[str, Any]:
    return {"id": name, "title": "t", "context": "A paragraph.", "question": f"{name} où?",
            "answers": {"text": list(answers), "answer_start": [0] * len(answers)}}  # fmt: skip


def web(question: str, *answers: str) -> dict[str, Any]:
    return {"url": "u", "question": question, "answers": list(answers)}


def read(name: str, root: Path, split: str = "dev") -> list[Example]:
    return list(data.read(Benchmark(name=name, root=str(root), split=split)))


def error_of(name: str, root: Path, split: str = "dev") -> str:
    with pytest.raises(UserError) as error:
        read(name, root, split)
    assert "\n" not in str(error.value)
    return str(error.value)


def question(
    name: str, text: str, target: str | None, *alternatives: str, user: str = "", unit: str = ""
) -> Example:
    """A user of its own, called like the question unless said, with an empty history."""
    return Example(name, user or name, text, text, target, alternatives=alternatives, unit=unit)


def test_natural_questions_open_from_the_catalogue(tmp_path: Path) -> None:
    rows = [
        {"question": "who?", "answer": ["Ann", "Ann", "Bob"]},
        {"question": "où?", "answer": ["à Zürich"]},
    ]
    path = catalogue(tmp_path, "natural_questions_open", {"train": rows[:1], "validation": rows[1:]})
    for root in (path, tmp_path):
        benchmark = Benchmark(name="nq_open", root=str(root))
        assert data.splits(benchmark) == ("train", "dev")
        learned = question("train-0", "who?", "Ann", "Bob", user="train/train-0")
        assert read("nq_open", root, "train") == [learned]
        assert read("nq_open", root) == [question("dev-0", "où?", "à Zürich")]
        assert [(s.split, s.examples, s.empty_profiles) for s in data.validate(benchmark)] == [
            ("train", 1, 1), ("dev", 1, 1),
        ]  # fmt: skip


def test_trivia_qa_from_the_catalogue(tmp_path: Path) -> None:
    rows = [trivia("q1", "Sunset", "Sunset", "The sunset"), trivia("q2", "X"), trivia("q1", "Dawn")]
    path = catalogue(tmp_path, "trivia_qa/rc", {"validation": rows, "test": [trivia("q3", "<unk>")]})
    benchmark = Benchmark(name="trivia_qa", root=str(path))
    found = {example.target: example for example in read("trivia_qa", path)}
    assert {example.id for example in found.values()} == {"q1", "q1#2", "q2"}
    assert found["X"] == question("q2", "q2?", "X")
    assert (found["Sunset"].query, found["Dawn"].query) == ("q1?", "q1?")
    assert found["Sunset"].alternatives == ("The sunset", "sunset", "the sunset")
    assert read("trivia_qa", path, "test") == [question("q3", "q3?", None)]
    assert any("the question 'q1' occurs again" in repair for repair in data.validate(benchmark)[0].repairs)


def test_an_id_that_a_training_user_may_bear_is_refused(tmp_path: Path) -> None:
    path = catalogue(tmp_path, "squad/v1.1", {"validation": [squad("train/s1", "A")]})
    with pytest.raises(
        UserError, match=r"question 'train/s1', field 'id': found 'train/s1', which a user of"
    ):
        read("squad", path)


def test_squad_from_the_catalogue(tmp_path: Path) -> None:
    path = catalogue(tmp_path, "squad/v1.1", {"validation": [squad("s1", "in Paris", "Paris", "in Paris")]})
    assert read("squad", path) == [question("s1", "s1 où?", "in Paris", "Paris", unit="t")]
    context = squad("s1")["context"]
    collection = tmp_path / "passages.json"
    collection.write_text(
        json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": []}]}]})
    )
    benchmark = Benchmark(name="squad", root=str(path), passages=str(collection))
    (passage,), (known,) = passages.documents(benchmark), data.read(benchmark)
    assert (passage.fields["text"], known.relevant) == (context, ((passage.id,),))


def test_a_question_that_squad_2_leaves_unanswered_has_the_empty_answer(tmp_path: Path) -> None:
    none = {"text": [], "answer_start": []}
    row = {**squad("s1"), "is_impossible": True, "plausible_answers": none}
    path = catalogue(tmp_path, "squad/v2.0", {"validation": [row]})
    assert read("squad", path) == [question("s1", "s1 où?", "", unit="t")]


def test_web_questions_from_the_catalogue(tmp_path: Path) -> None:
    path = catalogue(tmp_path, "web_questions", {"test": [web("who?", "Ann", "Bob")]})
    assert read("web_questions", path, "test") == [question("test-0", "who?", "Ann", "Bob")]


def test_official_files_of_nq_open_and_web_questions(tmp_path: Path) -> None:
    (tmp_path / "NQ-open.train.jsonl").write_text('{"question": "who?", "answer": ["Ann", "Bob"]}\n\n')
    assert data.splits(Benchmark(name="nq_open", root=str(tmp_path))) == ("train",)
    learned = question("train-0", "who?", "Ann", "Bob", user="train/train-0")
    assert read("nq_open", tmp_path, "train") == [learned]
    for stem in ("trainmodel", "val", "devtest", "test"):
        record = {"qId": f"w-{stem}", "qText": "who?", "answers": ["Ann", "Bob"]}
        (tmp_path / f"{stem}.json").write_text(json.dumps([record]))
    assert data.splits(Benchmark(name="web_questions", root=str(tmp_path))) == (
        "train",
        "dev",
        "devtest",
        "test",
    )
    for split, stem in {"train": "trainmodel", "dev": "val", "devtest": "devtest", "test": "test"}.items():
        user = "train/w-trainmodel" if split == "train" else ""
        assert read("web_questions", tmp_path, split) == [
            question(f"w-{stem}", "who?", "Ann", "Bob", user=user)
        ]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"question": "q", "answer": [1]},
            "field 'answer': found a number in the list, wanted strings alone",
        ),
        ({"question": "q", "answer": []}, "question 'dev-0' of the split dev: found no answer"),
    ],
)
def test_a_malformed_record_is_named(record: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "NQ-open.dev.jsonl").write_text(json.dumps(record))
    assert words in error_of("nq_open", tmp_path)


def test_a_folder_of_another_set_is_refused(tmp_path: Path) -> None:
    path = catalogue(tmp_path, "web_questions", {"test": [web("who?", "Ann")]})
    error = error_of("squad", path)
    assert f"{path}: found the dataset web_questions, wanted squad for squad; set --benchmark.name" in error
    assert "found no file of squad here, wanted for squad TFDS's squad prepared as array_record" in error_of(
        "squad", tmp_path
    )


def test_a_catalogue_folder_is_prepared_for_the_loader(tmp_path: Path) -> None:
    rows = [web(f"q{i}?", f"a{i}", f"b{i}") for i in range(5)]
    path = catalogue(tmp_path / "tfds", "web_questions", {"train": rows, "test": rows[:1]})
    with pytest.raises(UserError, match="found no prepared dataset, wanted one that"):
        prepared.examples(path, "train")
    ours = prepared.prepare(Benchmark(name="web_questions", root=str(path)), tmp_path / "ours")
    (batch,) = prepared.loader(ours, "train", batch_size=5, seed=0)
    assert sorted(batch, key=lambda e: e.id) == read("web_questions", path, "train")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "folder", "counts"),
    [
        ("nq_open", "nq_open", {"dev": 3610}),
        ("web_questions", "web_questions", {"train": 2834, "dev": 755, "devtest": 189, "test": 2032}),
    ],
)
def test_real_question_sets_are_read_whole(
    name: str, folder: str, counts: dict[str, int], real_data: Path
) -> None:
    found = data.validate(Benchmark(name=name, root=str(real_data / folder)))
    assert {split.split: split.examples for split in found} == counts
    assert all(split.users == split.examples == split.empty_profiles for split in found)
