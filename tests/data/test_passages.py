"""Shared collections of passages: their formats, their faults, and questions that are answered from them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax import data
from pbr_jax.base.types import Document, UserError
from pbr_jax.config import Benchmark, load, override
from pbr_jax.corpus.store import build
from pbr_jax.data import passages

CONFIGS = Path(__file__).parents[2] / "configs"
TEXTS = {"p1": ("Tides", "The moon pulls the sea."), "p2": ("", 'A "quoted"\ttext, où 1 < 2.')}


def read(path: Path) -> list[Document]:
    return list(passages.documents(Benchmark(name="nq_open", passages=str(path))))


def jsonl(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def expected(id: str) -> Document:
    title, text = TEXTS[id]
    fields = {"title": title, "text": text} if title else {"text": text}
    return Document(id, "", f"{title} {text}".strip(), fields, shared=True)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", ["id", "_id", "tsv"])
def test_a_collection_is_read_from_any_of_its_formats(tmp_path: Path, form: str, compressed: bool) -> None:
    if form == "tsv":
        path = tmp_path / "psgs_w100.tsv"
        path.write_text(
            'id\ttext\ttitle\np1\tThe moon pulls the sea.\tTides\np2\t"A ""quoted""\ttext, où 1 < 2."\t\n'
        )
    else:
        path = jsonl(tmp_path / "corpus.jsonl", *(
            {form: id, "title": title, "text": text, "metadata": {}} for id, (title, text) in TEXTS.items()
        ))  # fmt: skip
    if compressed:
        path = path.rename(path.with_name(f"{path.name}.gz"))
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path) == [expected("p1"), expected("p2")]


def squad(path: Path, *paragraphs: tuple[str, list[dict[str, Any]]], title: str = "Sea") -> Path:
    listed = [{"context": context, "qas": qas} for context, qas in paragraphs]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": title, "paragraphs": listed}]}))
    return path


def asked(id: str, question: str, *answers: str) -> dict[str, Any]:
    return {"id": id, "question": question, "answers": [{"text": a, "answer_start": 0} for a in answers]}


MOON = ("The moon pulls the sea.", [asked("q1", "What pulls the sea?", "The moon", "moon")])
WIND = ("Wind makes waves.", [asked("q2", "What makes waves?", "Wind"), asked("q3", "Why?", "")])


def test_squads_paragraphs_are_passages_and_their_questions_know_them(tmp_path: Path) -> None:
    path = squad(tmp_path / "dev-v1.1.json", MOON, WIND, (MOON[0], []))  # one of them twice
    first, second = read(path)
    assert (first.fields, first.text) == ({"title": "Sea", "text": MOON[0]}, f"Sea {MOON[0]}")
    benchmark = Benchmark(name="squad", root=str(tmp_path), passages=str(path))
    examples = list(data.read(benchmark))
    assert [(e.id, e.target, e.alternatives) for e in examples] == [
        ("q1", "The moon", ("moon",)), ("q2", "Wind", ()), ("q3", "", ())
    ]  # fmt: skip
    assert [e.relevant for e in examples] == [((first.id,),), ((second.id,),), ((second.id,),)]
    other = jsonl(tmp_path / "c.jsonl", {"id": "1", "text": MOON[0]})
    for unknown in ("", str(other)):
        read_ = data.read(Benchmark(name="squad", root=str(tmp_path), passages=unknown))
        assert {e.relevant for e in read_} == {()}


TSV = "id\ttext\ttitle\n"


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        (
            "c.jsonl",
            '{"id": "a", "text": "x"}\n{"id": "b"}\n',
            r"record 1 .id 'b'., field 'text': found no such key",
        ),
        ("c.jsonl", '{"text": "x"}\n', "record 0, field 'id'|record 0, field '_id'"),
        ("c.jsonl", '{"id": "", "text": "x"}\n', "record 0 .*field 'id': found an empty string"),
        ("c.jsonl", '{"id": "a", "text": " "}\n', r"record 0 .id 'a'., field 'text': found an empty text"),
        ("c.jsonl", '{"id": "a", "text": 7, "title": []}\n', "record 0 .*field 'title': found a list"),
        ("c.jsonl", "[1]\n", "record 0: found a list, wanted an object"),
        ("c.tsv", "text\ttitle\nx\ty\n", "found the columns 'text, title', wanted 'id' among them"),
        ("c.tsv", "", "c.tsv: found no header"),
        ("c.tsv", f"{TSV}1\tx\ty\n2\tx\n", r"row 2 .line 3.: found 2 cells, want 3"),
        ("c.tsv", f"{TSV}1\t\ty\n", r"row 1, field 'text': found an empty text"),
        ("c.tsv", f'{TSV}1\t"{"x" * 200_000}\n', "row 1: found a cell that cannot be read"),
        ("c.json", "[]", "found a list, wanted a JSON object"),
        ("c.json", '{"data": [{"paragraphs": [{"qas": []}]}]}', r"data\[0\].paragraphs\[0\].context'"),
        ("c.jsonl", "\n", "found no passage, wanted at least one"),
        ("c.tsv", TSV, "found no passage, wanted at least one"),
        ("c.json", '{"data": []}', "found no passage, wanted at least one"),
        ("c.txt", "x", r"found .*c.txt, wanted a file that ends in .jsonl"),
    ],
)
def test_faults_are_told_in_one_line(tmp_path: Path, name: str, content: str, wanted: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=wanted) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)
    assert name in str(error.value)


def test_an_id_that_stands_twice_is_told_with_its_place(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "c.jsonl", *({"id": id, "text": f"text {i}"} for i, id in enumerate("abcb")))
    with pytest.raises(UserError, match=r"c\.jsonl: record 3, field 'id': found 'b' a second time"):
        build(tmp_path / "store.sqlite", [], shared={str(path): read(path)})
    with pytest.raises(UserError, match=r"c\.jsonl: record 3, field 'id': found 'b' a second time"):
        passages.count(Benchmark(name="nq_open", passages=str(path)))  # as `data validate` does
    other = jsonl(tmp_path / "d.jsonl", {"id": "x", "text": "one"}, {"id": "a", "text": "two"})
    path = jsonl(tmp_path / "e.jsonl", {"id": "a", "text": "three"})
    both = Benchmark(name="nq_open", passages=str(path), distractors=str(other))
    with pytest.raises(UserError, match=r"d\.jsonl: record 1, field 'id': found 'a' a second time"):
        passages.count(both)


METHODS = ("bm25", "dense")


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_questions_are_answered_from_shared_passages_without_collaboration(
    tmp_path: Path, tiny_models: dict[str, str], method: str
) -> None:
    draws = [f"tea {n} cats" for n in range(9)]
    pairs = [(text, [asked(f"q{n}", f"about {text}", text)]) for n, text in enumerate(draws)]
    path = squad(tmp_path / "dev-v1.1.json", *pairs)
    fields = {"benchmark.name": "squad", "benchmark.root": str(tmp_path), "benchmark.passages": str(path),
              "retrieve.k": 3, "select.k": 3, "generate.max_new_tokens": 2, "eval.resamples": 20,
              "generate.method": "ipa", "eval.likelihood": "off", **tiny_models}  # fmt: skip
    config = override(load(CONFIGS / f"{method}.py").config, fields)
    results = pbr_jax.run(config, tmp_path / "out")
    recalls = [results.metrics[name] for name in ("recall@1", "recall@3")]
    assert set(results.metrics) >= {"squad_f1", "exact_match"}
    assert "recall@5" not in results.metrics  # three were ranked
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    first = {d.fields["text"]: d.id for d in read(path)}
    hits = [[d["id"] for d in line["documents"]].index(first[text]) if first[text] in
            [d["id"] for d in line["documents"]] else 99 for line, text in zip(lines, draws)]  # fmt: skip
    assert recalls == [sum(hit < k for hit in hits) / len(hits) for k in (1, 3)]
    if method == "bm25":
        assert recalls == [1.0, 1.0]
    assert all(
        len(line["documents"]) == 3 and {d["user_id"] for d in line["documents"]} == {""} for line in lines
    )
    texts = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert "title: Sea" in str(texts[0]["prompt"])
    assert f"passage: {texts[0]['documents'][0]['text'].removeprefix('Sea ')}" in str(texts[0]["prompt"])


def test_a_history_and_shared_passages_are_searched_together(tmp_path: Path, write_tweets) -> None:
    root = write_tweets({"ann": ["tea and cats", "cats"], "bob": ["violins and tea"]})
    path = jsonl(tmp_path / "c.jsonl", *({"id": f"p{i}", "text": f"tea {i}"} for i in range(3)))
    fields = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "benchmark.passages": str(path),
              "retrieve.k": 2, "select.k": 4, "generate.method": "none", "eval.likelihood": "off",
              "eval.resamples": 20}  # fmt: skip
    pbr_jax.run(override(load(CONFIGS / "bm25.py").config, fields), tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    owners = {line["user_id"]: sorted(d["user_id"] for d in line["documents"]) for line in lines}
    assert owners == {"ann": ["", "", "ann", "ann"], "bob": ["", "", "bob"]}


@pytest.mark.data
def test_xquads_paragraphs_are_read(real_data: Path) -> None:
    for language in ("en", "de", "zh"):
        path = real_data / "xquad" / f"xquad.{language}.json"
        assert len(read(path)) == 240
