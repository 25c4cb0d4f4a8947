"""A store of passages: what went in whole comes out in parts and whole, and goes as a whole."""

import dataclasses
from pathlib import Path

import pytest

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store, build
from pbr_jax.options import Corpus
from pbr_jax.text.passages import passages

CORPUS = Corpus(chunk="words", words=4, stride=2)
TEXT = "one two three four five six SECRET"
TALL = Document("tall", "u", TEXT, {"text": TEXT, "title": "t"}, 5.0)
TINY = Document("tiny", "u", "just one", {"title": "the answer"})
EMPTY = Document("empty", "u", "")
SHARED = Document("s", "", "a b c d e f", shared=True)


def asked(*profile: Document, user: str = "u") -> Example:
    return Example("q", user, "q", "in", "the answer", profile)


def built(folder: Path, *examples: Example, newest: int | None = None) -> Store:
    build(folder / "built.sqlite", examples, "title", shared={"s": [SHARED]}, corpus=CORPUS, newest=newest)
    return Store(folder / "built.sqlite")


def test_passages_and_whole_documents_come_back(tmp_path: Path):
    store = built(tmp_path, asked(TALL, TINY, EMPTY))
    (example,) = store.examples()
    rows = store.visible(example, "u")
    assert store.documents(rows) == [*passages(TALL, CORPUS), TINY, EMPTY]
    assert len(rows) == 5
    assert store.wholes(rows) == [TALL] * 3 + [TINY, EMPTY]
    assert store.firsts.tolist() == [0, 0, 0, 3, 4, 5, 5]
    assert store.most_passages == 3
    assert store.spans(2) == [one.span for one in passages(TALL, CORPUS)]
    assert store.wholes(store.history("")) == [SHARED] * 2
    assert store.summary.targets_in_history == 1


def test_the_newest_documents_are_whole_ones(tmp_path: Path):
    store = built(tmp_path, asked(TALL, TINY), newest=1)
    (example,) = store.examples()
    assert {d.whole for d in store.documents(store.visible(example, "u"))} == {"tall"}
    assert len(store.history("u")) == 4


def test_a_long_answer_is_known_in_every_passage(tmp_path: Path):
    answer = "a long answer of many words"
    document = Document("d", "v", f"so {answer}", {"title": answer})
    build(tmp_path / "s", [asked(document, user="v"), Example("p", "u", "q", "in", answer)], "title",
          corpus=CORPUS)  # fmt: skip
    store = Store(tmp_path / "s")
    assert len(store.history("v")) == 3
    assert store.visible([*store.examples()][1], "v").tolist() == []


def test_documents_that_are_added_are_cut_and_take_the_place_of_older_ones(tmp_path: Path):
    store = built(tmp_path, asked(TALL, TINY)).copy_to(tmp_path / "copy" / "s")
    (example,) = store.examples()
    assert store.append([TALL]).tolist() == [0, 1, 2]
    content = store.content
    newer = dataclasses.replace(TALL, text="new one two three four five", fields={})
    assert store.append([newer]).tolist() == [6, 7]
    assert store.wholes(store.visible(example, "u")) == [newer, newer, TINY]
    assert store.firsts[[6, 7]].tolist() == [6, 6]
    assert store.append([TALL]).tolist() == [8, 9, 10]
    assert store.content != content
    with pytest.raises(UserError, match=r"'tall\[0:.*is a passage of 'tall'; add the whole document"):
        store.append(passages(TALL, CORPUS)[:1])


@pytest.mark.parametrize("way", ["delete", "forget", "replace"])
def test_of_a_deleted_document_no_byte_is_left(tmp_path: Path, way: str):
    store = built(tmp_path, asked(TALL, TINY)).copy_to(tmp_path / "copy" / "s")
    assert any(b"SECRET" in file.read_bytes() for file in (tmp_path / "copy").iterdir())
    (example,) = store.examples()
    if way == "delete":
        assert store.delete("u", ["tall"]).tolist() == [0, 1, 2]
        assert store.wholes(store.visible(example, "u")) == [TINY]
        with pytest.raises(UserError, match="'tall' is not in the store"):
            store.delete("u", ["tall"])
    elif way == "replace":
        store.append([dataclasses.replace(TALL, text="short", fields={})])
    else:
        store.forget("u")
    store.close()
    assert not any(b"SECRET" in file.read_bytes() for file in (tmp_path / "copy").iterdir())


def test_the_content_is_that_of_what_is_left(tmp_path: Path):
    store = built(tmp_path, asked(TINY)).copy_to(tmp_path / "copy" / "s")
    before = store.content
    store.append([TALL])
    assert store.content != before
    store.delete("u", ["tall"])
    assert store.content == before


def test_passages_are_hidden_together(tmp_path: Path):
    store = built(tmp_path, asked(TALL, TINY)).copy_to(tmp_path / "copy" / "s")
    (example,) = store.examples()
    with store.changing() as writer:
        writer.hide("u", "tall")
    assert store.visible(example, "u").tolist() == [3]
    assert not store.holds("u", "tall")


def test_a_text_is_cut_as_a_document_of_it_is(tmp_path: Path):
    store = built(tmp_path, asked(TINY)).copy_to(tmp_path / "copy" / "s")
    rows = store.append([Document("remark:1", "", TEXT, shared=True)])
    assert store.cut(TEXT) == [text for _, text in store.texts(rows)]
    build(tmp_path / "whole", [asked(TINY)])
    assert Store(tmp_path / "whole").cut(TEXT) == [TEXT]
