"""XQuAD and SQuAD with passages of another language: joins by question id, units, distractors, faults."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark, load, override
from pbr_jax.data import passages, prepared, question_sets

CONFIGS = Path(__file__).parents[2] / "configs"
# Of each article its title and paragraphs, of each paragraph its text and, by id, questions with answers.
Article = tuple[str, dict[str, dict[str, tuple[str, ...]]]]
ENGLISH: list[Article] = [
    ("Sea", {"The moon pulls the sea.": {"q1": ("What pulls?", "The moon", "moon"),
                                         "q2": ("The moon pulls?", "the sea")},
             "Wind makes waves.": {"q3": ("What makes waves?", "Wind")}}),
    ("Tea", {"Tea comes from China.": {"q4": ("Whence tea?", "China")}}),
]  # fmt: skip
GERMAN: list[Article] = [
    ("Sea", {"Der Mond zieht das Meer an.": {"q2": ("Wen?", "das Meer"), "q1": ("Was zieht?", "Der Mond")},
             "Wind macht Wellen.": {"q3": ("Was macht Wellen?", "Wind")}}),
    ("Tee", {"Tee kommt aus China.": {"q4": ("Woher Tee?", "China")}}),
]  # fmt: skip


def write(path: Path, articles: list[Article]) -> Path:
    listed = [
        {"title": title, "paragraphs": [
            {"context": text, "qas": [
                {"id": id, "question": asked, "answers": [{"text": a, "answer_start": 0} for a in answers]}
                for id, (asked, *answers) in questions.items()
            ]}
            for text, questions in paragraphs.items()
        ]}
        for title, paragraphs in articles
    ]  # fmt: skip
    path.write_text(json.dumps({"version": "1.1", "data": listed}))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "xquad.en.json", ENGLISH)
    write(tmp_path / "xquad.de.json", GERMAN)
    return tmp_path


def read(root: Path, split: str = "de", **fields: Any) -> dict[str, Example]:
    benchmark = Benchmark(name="xquad", root=str(root), split=split, **fields)
    return {example.id: example for example in data.read(benchmark)}


def texts(root: Path, **fields: Any) -> dict[str, str]:
    """The passages' texts by id."""
    benchmark = Benchmark(name="xquad", root=str(root), split="de", **fields)
    return {document.id: document.fields["text"] for document in passages.documents(benchmark)}


def test_questions_of_one_language_have_paragraphs_and_answers_of_another(root: Path) -> None:
    found, there = read(root, passages="en"), texts(root, passages="en")
    assert list(found) == ["q2", "q1", "q3", "q4"]  # in the order of the German file
    assert list(there.values()) == [text for _, paragraphs in ENGLISH for text in paragraphs]
    for _, paragraphs in ENGLISH:
        for text, questions in paragraphs.items():
            for id, (_, *answers) in questions.items():
                example = found[id]
                assert [[there[name] for name in group] for group in example.relevant] == [[text]]
                assert [example.target, *example.alternatives] == answers
    assert [found[id].query for id in ("q1", "q4")] == ["Was zieht?", "Woher Tee?"]
    # The title where both languages have it, else the article's number.
    assert [found[id].unit for id in ("q1", "q3", "q4")] == ["Sea", "Sea", "article 1"]
    own = read(root, passages="de")
    assert (own["q4"].unit, own["q4"].target, own["q1"].target) == ("Tee", "China", "Der Mond")
    assert read(root)["q1"].relevant == ()


def test_a_paragraph_is_indexed_without_its_title(root: Path) -> None:
    """Titles are English in all of XQuAD's languages."""
    benchmark = Benchmark(name="xquad", root=str(root), split="de", passages="de")
    first = next(passages.documents(benchmark))
    assert (first.text, first.fields["title"]) == ("Der Mond zieht das Meer an.", "Sea")


def test_a_file_outside_of_the_root_joins_by_id_too(root: Path, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = shutil.copy(root / "xquad.en.json", elsewhere / "paragraphs.json")
    assert read(root, passages=str(path)) == read(root, passages="en")
    bare = write(elsewhere / "bare.json", [(title, {text: {} for text in own}) for title, own in GERMAN])
    assert read(root, passages=str(bare)) == read(root, passages="de")  # by paragraph
    with pytest.raises(
        UserError, match=r"bare\.json: found no question 'q1', wanted its id or its paragraph"
    ):
        read(root, "en", passages=str(bare))
    lines = elsewhere / "c.jsonl"
    lines.write_text('{"id": "p", "text": "The moon pulls the sea."}\n')
    assert read(root, passages=str(lines))["q1"].relevant == ()  # nothing says which


def test_squad_has_units_and_takes_a_split_as_passages(tmp_path: Path) -> None:
    path = write(tmp_path / "dev-v1.1.json", [*ENGLISH, ("", {"Salt.": {"q5": ("What?", "Salt")}})])
    benchmark = Benchmark(name="squad", root=str(tmp_path), passages="dev")
    found = list(data.read(benchmark))
    assert [e.unit for e in found] == ["Sea", "Sea", "Sea", "Tea", "article 2"]
    assert found == list(data.read(Benchmark(name="squad", root=str(tmp_path), passages=str(path))))
    assert found[4].relevant == ((question_sets.paragraph_id("Salt."),),)
    write(tmp_path / "train-v1.1.json", ENGLISH[:1])
    with pytest.raises(UserError, match=r"train-v1\.1\.json: found no question 'q4', wanted its id there"):
        list(data.read(Benchmark(name="squad", root=str(tmp_path), passages="train")))


def without(articles: list[Article], id: str) -> list[Article]:
    return [
        (title, {t: {i: q for i, q in own.items() if i != id} for t, own in paragraphs.items()})
        for title, paragraphs in articles
    ]


DOUBLED = [*ENGLISH, ("More", {"Salt.": {"q1": ("Twice?", "yes")}})]
TWICE = [*ENGLISH, ("More", {"Wind makes waves.": {}})]


@pytest.mark.parametrize(
    ("english", "fields", "wanted"),
    [
        (without(ENGLISH, "q3"), {}, r"xquad\.en\.json: found no question 'q3', wanted its id there"),
        ([], {}, r"xquad\.en\.json: found no question 'q2', wanted its id there"),
        (DOUBLED, {}, r"xquad\.en\.json: found the question 'q1' a second time, wanted every id once"),
        (TWICE, {}, r"data\[2\]\.paragraphs\[0\]\.context': found a paragraph that stands there already"),
        (
            None,
            {},
            r"found no such file en, wanted a collection of passages, or a split of .* \(there are de\)",
        ),
        (ENGLISH, {"split": "dev"}, r"found the splits de, en, wanted 'dev' in xquad\.\{split\}\.json"),
        (ENGLISH, {"distractors": "x.json"}, r"benchmark\.distractors: found no such file x\.json"),
        (ENGLISH, {"distractors": "ROOT/xquad.en.json"}, r"found .*xquad\.en\.json, the passages' file"),
        (ENGLISH, {"distractors": "ROOT/xquad.txt"}, r"found .*xquad\.txt, wanted a file that ends in"),
    ],
)
def test_faults_are_one_line_and_exit_with_two(
    english: list[Article] | None, fields: dict[str, str], wanted: str, tmp_path: Path, capsys
) -> None:
    write(tmp_path / "xquad.de.json", GERMAN)
    if english is not None:
        write(tmp_path / "xquad.en.json", english)
    (tmp_path / "xquad.txt").write_text("x")
    place = {"split": "de", "passages": "en", **fields}
    place = {name: value.replace("ROOT", str(tmp_path)) for name, value in place.items()}
    options = [word for name, value in place.items() for word in (f"--benchmark.{name}", value)]
    run = ["run", "bm25", "--benchmark.name", "xquad", "--benchmark.root", str(tmp_path), *options,
           "--generate.method", "none", "--eval.likelihood", "off",
           "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(run) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert re.search(wanted, line)


def test_distractors_are_further_passages_and_relevant_to_nothing(root: Path) -> None:
    path = root / "news.tsv"
    path.write_text("id\ttext\ttitle\nn1\tThe moon was full.\tNews\n")
    fields = {"passages": "en", "distractors": str(path)}
    assert read(root, **fields) == read(root, passages="en")
    assert list(texts(root, **fields).values()) == [
        *texts(root, passages="en").values(),
        "The moon was full.",
    ]
    alone = Benchmark(name="xquad", root=str(root), split="de", distractors=str(path))
    assert [d.text for d in passages.documents(alone)] == ["News The moon was full."]
    every: list[dict[str, Any]] = [
        {}, {"passages": "en"}, {"passages": "de"}, fields, {"distractors": str(path)},
        {"passages": str(path)},
    ]  # fmt: skip
    place: dict[str, Any] = {"name": "xquad", "root": str(root), "split": "de"}
    prints = {data.fingerprint(Benchmark(**place, **own)) for own in every}
    assert len(prints) == 6


def test_prepared_questions_are_joined_by_id_too(root: Path, tmp_path_factory) -> None:
    out = tmp_path_factory.mktemp("prepared")
    prepared.prepare(Benchmark(name="xquad", root=str(root)), out)
    assert read(out) == read(root)
    paragraphs = str(root / "xquad.en.json")
    assert read(out, passages=paragraphs) == read(root, passages=paragraphs)
    with pytest.raises(UserError, match="found no such file en, wanted a collection of passages"):
        read(out, passages="en")


FROZEN = {("en", "en"): (0.885, 0.982, 0.990), ("de", "en"): (0.369, 0.591, 0.661)}


@pytest.mark.data
@pytest.mark.long
@pytest.mark.usefixtures("fresh_cache")
def test_frozen_recall_of_the_real_files(real_data: Path, tmp_path: Path) -> None:
    """What was measured outside of the pipeline, with cosines of the same encoder. Runs share vectors."""
    dense = load(CONFIGS / "dense.py").config
    fields: dict[str, Any] = {"benchmark.name": "xquad", "benchmark.root": str(real_data / "xquad"),
                              "generate.method": "none", "eval.likelihood": "off"}  # fmt: skip
    for (split, collection), frozen in FROZEN.items():
        place = {"benchmark.split": split, "benchmark.passages": collection}
        results = pbr_jax.run(override(dense, {**fields, **place}), tmp_path / f"{split}-{collection}")
        found = [results.metrics[f"recall@{k}"] for k in (1, 5, 10)]
        assert found == pytest.approx(frozen, abs=0.002), place
        assert (results.values["n"], results.values["clusters"]) == (1190, "units")
        assert len({line["unit"] for line in results.records()}) == 48
