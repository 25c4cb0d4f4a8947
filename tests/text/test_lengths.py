"""Texts that a model does not read to their end are counted, and told where numbers are shown."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from pbr_jax import run
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.text.lengths import count_cut, cut_notes
from pbr_jax.text.tokenizing import load_tokenizer

WORDS = st.lists(st.sampled_from(["tea", "cats", "day", "7", "日本", "x" * 9, "...", "é"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(WORDS.map(" ".join), max_size=6), most=st.integers(3, 14))
def test_cut_texts_are_those_of_which_the_tokenizer_loses_tokens(
    tiny_models: dict[str, str], texts: list[str], most: int
):
    folder = Path(tiny_models["encoder.model"])
    whole = Backend.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder, max_length=most)
    lost = [len(whole.encode(text).ids) > len(ids) for text, ids in zip(texts, tokenizer.encode_batch(texts))]
    assert count_cut(tokenizer, [(text,) for text in texts]) == sum(lost)
    pairs = list(pairwise(texts))
    read = [len(ids) for ids, _ in tokenizer.encode_pairs(pairs)] if most > 3 else []
    lost = [len(whole.encode(*pair).ids) > size for pair, size in zip(pairs, read)]
    assert most == 3 or count_cut(tokenizer, pairs) == sum(lost)
    assert count_cut(load_tokenizer(folder), [(text,) for text in texts]) == 0


LONG = "i love tea day " * 20


@pytest.fixture
def config(
    write_tweets: Callable[..., Path], tiny_models: dict[str, str], fresh_cache: Path
) -> Callable[..., Config]:
    tweets = {f"u{n}": [f"{LONG if n % 2 else 'i love'} {n}", "cats"] for n in range(6)}
    root = write_tweets(tweets)

    def made(**fields: Any) -> Config:
        base = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "generate.method": "none"}
        return override(Config(), {**base, **tiny_models, "eval.resamples": 20, **fields})

    return made


def notes(results: Any) -> list[str]:
    return [note for note in results.values["notes"] if "longer than" in note]


@pytest.mark.long
def test_a_dense_run_counts_what_its_encoder_cuts(config: Callable[..., Config], tmp_path: Path):
    for name in ("first", "again"):  # the second one finds the vectors
        results = run(config(**{"retrieve.method": "dense"}), tmp_path / name)
        [documents] = notes(results)
        assert documents.startswith("3 of 12 documents are longer than the encoder's 64 tokens and are cut")
        assert "--corpus.chunk words" in documents
        assert results.values["counts"]["cut_documents"] == 3
    cut = run(config(**{"retrieve.method": "dense", "corpus.chunk": "words"}), tmp_path / "chunks")
    assert notes(cut) == []
    assert notes(run(config(**{"retrieve.method": "bm25"}), tmp_path / "bm25")) == []


def test_queries_that_are_cut_are_counted(config: Callable[..., Config], tmp_path: Path):
    results = run(config(**{"retrieve.method": "dense", "encoder.max_length": 3}), tmp_path / "short")
    documents, queries = notes(results)
    assert documents.startswith("6 of 12 documents")
    assert queries.startswith("6 queries are longer than")


def test_prompts_that_are_cut_are_counted(config: Callable[..., Config], tmp_path: Path):
    fields = {"generate.method": "ipa", "generate.max_new_tokens": 4, "retrieve.method": "recency"}
    fields |= {"llm.context": 160, "llm.overflow": "cut", "eval.likelihood": "off"}
    [note] = notes(run(config(**fields), tmp_path / "cut"))
    assert note.startswith("6 prompts are longer than the language model's context")


def test_data_validate_says_what_the_default_encoder_cuts(
    write_tweets: Callable[..., Path], capsys: pytest.CaptureFixture[str]
):
    for texts, there in ((["tea"], False), (["tea", "word " * 300], True)):
        root = write_tweets({"u": texts, "v": texts})
        assert main(["data", "validate", "--benchmark.name", "lamp_7", "--benchmark.root", str(root)]) == 0
        told = capsys.readouterr().out
        assert ("1 of 2 documents are longer than the encoder's 256 tokens" in told) == there


def test_nothing_is_told_of_nothing():
    assert cut_notes({"cut_documents": 0, "encoded_documents": 3, "documents": 3}) == []
