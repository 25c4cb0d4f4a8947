"""Runs over passages: rankings and metrics of documents against brute force, with methods as they are."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbr_jax
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.config import Config, override, to_dict
from pbr_jax.corpus.store import Store
from pbr_jax.data import read
from pbr_jax.experiment.plan import Plan
from pbr_jax.pipeline import Ranking
from pbr_jax.stages.vectors import encoder

WORDS = ("tea", "cats", "football", "violins", "i", "love", "about", "that", "day", *"0123456789")

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def config(tmp_path: Path, tiny_models: dict[str, str]) -> Config:
    draw = random.Random(3)

    def question(number: int) -> dict[str, Any]:
        names = [f"{'answer_' if i == 2 else ''}q{number}_s{i}" for i in range(15)]
        sessions = [
            [{"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.randint(1, 9))),
              "has_answer": i == 2} for _ in range(draw.randint(0, 5))]
            for i in range(14)
        ] + [[{"role": "user", "content": "tea"}]]  # fmt: skip
        sessions[2].append({"role": "user", "content": "love cats", "has_answer": True})
        asked = " ".join(draw.choices(WORDS, k=4))
        return {"question_id": f"q{number}", "question_type": "t", "question": asked,
                "answer": "tea", "question_date": "2023/05/30 (Tue) 20:00", "haystack_session_ids": names,
                "haystack_dates": ["2023/05/20 (Sat) 02:21"] * 15,
                "haystack_sessions": sessions}  # fmt: skip

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev.json").write_text(json.dumps([question(number) for number in range(4)]))
    place = {"benchmark.name": "longmemeval", "benchmark.root": str(tmp_path / "data"), **tiny_models}
    small = {"encoder.max_length": 32, "retrieve.k": 2, "prompt.max_tokens": 400, "llm.batch_size": 4}
    cut = {"corpus.chunk": "words", "corpus.words": 6, "corpus.stride": 4}
    return override(
        Config(),
        {**place, **small, **cut, "generate.method": "none", "eval.likelihood": "off", "eval.resamples": 20},
    )


def ranked(config: Config) -> tuple[list[Example], list[Ranking], Plan]:
    plan = Plan(config)
    examples = list(plan.store.value.examples())
    return examples, plan.system().rank(examples), plan


def windows(text: str, words: int, stride: int) -> list[str]:
    parts = text.split()
    last = max(len(parts) - words, 0)
    return [" ".join(parts[i : i + words]) for i in range(0, last + stride, stride)] or [""]


@pytest.mark.parametrize("pool", ["max", "none"])
def test_dense_ranks_documents_by_their_passages_as_brute_force_does(config: Config, pool: str):
    _, rankings, plan = ranked(override(config, {"corpus.pool": pool, "retrieve.k": 99}))
    encode = encoder(plan.run).value.encode
    for example, ranking in zip(read(config.benchmark), rankings, strict=True):
        (query,) = encode([example.query], role="query")
        wanted = []
        for document in example.profile:
            parts = windows(document.text, 6, 4)
            scores = sorted(encode(parts) @ query, reverse=True)
            told = scores[:1] if pool == "max" else scores
            wanted += [(document.id, float(score)) for score in told]
        wanted.sort(key=lambda pair: -pair[1])
        got = [(c.document.whole, c.score) for c in ranking]
        np.testing.assert_allclose([s for _, s in got], [s for _, s in wanted], rtol=1e-4, atol=1e-5)
        assert sorted(id for id, _ in got) == sorted(id for id, _ in wanted)


@pytest.mark.parametrize("method", [
    "dense", "bm25", "two_stage", "random", "recency",
])  # fmt: skip
def test_max_is_exact_at_any_depth_and_a_document_stands_once(config: Config, method: str):
    whole = {"retrieve.top_clusters": None} if method == "two_stage" else {}
    config = override(config, {"retrieve.method": method, **whole})
    deep = ranked(override(config, {"retrieve.k": 99}))[1]
    for ranking, every in zip(ranked(config)[1], deep, strict=True):
        ids = [c.document.whole for c in every]
        assert len(ids) == len(set(ids)) == 15
        assert [(c.document, c.score) for c in ranking] == [(c.document, c.score) for c in every[:10]]


def test_bm25_over_documents_scores_as_without_passages(config: Config):
    config = override(config, {"retrieve.method": "bm25", "retrieve.k": 15})
    _, over, plan = ranked(override(config, {"retrieve.over": "documents"}))
    _, whole, _ = ranked(override(config, {"corpus.chunk": "none"}))
    _, parts, _ = ranked(config)
    as_told = [[[(c.document.whole, c.score) for c in r] for r in some] for some in (over, whole, parts)]
    assert as_told[0] == as_told[1]
    assert as_told[0] != as_told[2]
    assert plan.store.value.most_passages > 2


@pytest.mark.long
@pytest.mark.parametrize("pool", ["max", "none"])
def test_a_run_counts_documents_and_says_what_it_showed(config: Config, tmp_path: Path, pool: str):
    told = {"generate.method": "ipa", "generate.max_new_tokens": 2, "prompt.show": "document"}
    run = pbr_jax.run(override(config, {**told, "corpus.pool": pool}), tmp_path / "out")
    (note,) = (note for note in run.values["notes"] if "corpus.chunk" in note)
    assert "metrics of rankings count documents, and prompts show the whole document" in note
    for record, example in zip(run.records(), read(config.benchmark), strict=True):
        texts = {document.id: document.text for document in example.profile}
        ids = [told["id"] for told in record["documents"]]
        assert all(0 <= a <= b <= len(texts[d["id"]]) for d in record["documents"] if "span" in d
                   for a, b in [d["span"]])  # fmt: skip
        ((needed,),) = example.relevant
        unique = list(dict.fromkeys(ids))
        assert (len(unique) == len(ids)) or pool == "none"
        for k in (1, 3):
            assert record["metrics"][f"recall@{k}"] == float(needed in unique[:k])


def test_the_evidence_of_passages_is_each_relevant_document_once(config: Config):
    config = override(config, {"select.method": "evidence", "corpus.pool": "none"})
    for example, ranking in zip(*ranked(config)[:2], strict=True):
        ((needed,),) = example.relevant
        assert [c.document.whole for c in ranking] == [needed]


def test_how_they_are_pooled_and_shown_changes_no_row(config: Config):
    data = Plan(config).data.key
    assert Plan(override(config, {"corpus.pool": "none", "prompt.show": "around"})).data.key == data
    assert Plan(override(config, {"corpus.stride": 3})).data.key != data
    turns = override(config, {"corpus.chunk": "turns"})
    store: Store = Plan(turns).store.value
    example = next(store.examples())
    (first, *_), rows = read(turns.benchmark), store.visible(example, example.user_id)
    session = next(d for d in first.profile if len(d.turns) > 1)
    parts = [d for d in store.documents(rows) if d.part_of == session.id]
    assert {0, *session.turns} <= {d.span[0] for d in parts}


def test_documents_that_are_added_are_found_by_their_passages_and_go(config: Config, tmp_path: Path):
    pbr_jax.run(config, tmp_path / "out")
    system = pbr_jax.open(tmp_path / "out")
    long = Document("new", "q0", f"{'tea ' * 12}violins violins day {'cats ' * 20}")
    system.add("q0", [long])
    (ranking,) = system.rank([Example("?", "q0", "violins violins day", "in", None, time=2e9)])
    found = next(c.document for c in ranking if c.document.whole == "new")
    assert len(found.text.split()) <= 6
    history = system.store.history("q0")
    parts = zip(history.tolist(), system.store.documents(history), strict=True)
    rows = [row for row, part in parts if part.whole == "new"]
    assert len(rows) == 9
    assert system.store.delete("q0", ["new"]).tolist() == rows
    system.forget("q0")
    with pytest.raises(UserError, match="not among"):
        system.rank([Example("?", "q0", "tea", "in", None)])


def test_another_users_passages_are_never_found(config: Config):
    for example, ranking in zip(*ranked(config)[:2], strict=True):
        assert {c.document.user_id for c in ranking} == {example.user_id}
    others = override(config, {"neighbours.method": "mean", "neighbours.m": 2, "collaboration": "text"})
    for ranking in ranked(others)[1]:
        users = [c.document.user_id for c in ranking]
        assert max(users.count(user) for user in users) <= 10


def test_what_learns_and_pools_no_passages_takes_them_by_themselves(config: Config):
    centred = override(config, {"retrieve.method": "centred", "stream.size": 2, "collaboration": "signals"})
    with pytest.raises(UserError, match=r"retrieve\.method is centred.*set corpus\.pool none"):
        Plan(centred)
    assert Plan(replace(centred, corpus=replace(centred.corpus, pool="none"))).streamed is not None


@pytest.mark.parametrize("of", [[], ["bm25"]])
def test_luf_ranks_documents_as_the_same_sum_does_until_it_has_learned(
    config: Config, tmp_path: Path, of: list[str]
):
    config = override(config, {"encoder.normalize": "yes"})
    learns = {"collaboration": "text", "stream.size": 4, "stream.order": "released"}
    luf = {"retrieve.method": "luf", "retrieve.labels.kind": "gold", "retrieve.update.batch_size": 2}
    told = {"luf": {**learns, **luf, "retrieve.moves": "map"}, "fused": {"retrieve.method": "fused"}}
    parts = {"luf": of, "fused": ["dense", *of]}
    found = [
        pbr_jax.run(override(config, {**some, "retrieve.of": parts[name]}), tmp_path / name).records()
        for name, some in told.items()
    ]
    ranked_by = [[[d["id"] for d in record["documents"]] for record in records] for records in found]
    assert ranked_by[0] == ranked_by[1]
    assert all(len(ids) == len(set(ids)) == 10 for ids in ranked_by[0])


KILLED = """
import json, os, signal, sys
from pbr_jax.config import from_dict
from pbr_jax.corpus import writer
from pbr_jax.experiment.plan import Plan

cut, last, count = writer.passages, int(sys.argv[2]), 0

def passages(*arguments):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return cut(*arguments)

writer.passages = passages
Plan(from_dict(json.loads(sys.argv[1]))).store.value
"""
RUN = """
import json, sys, jax, pbr_jax
from pbr_jax.config import from_dict
assert len(jax.devices()) == 1
pbr_jax.run(from_dict(json.loads(sys.argv[1])), sys.argv[2])
"""


def status(script: str, config: Config, cache: Path, *arguments: str) -> int:
    """That of a process of its own, on one device."""
    environment = {**os.environ, "PBR_JAX_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, json.dumps(to_dict(config)), *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def rows_of(store: Store) -> list[tuple[Document, Document]]:
    rows = sorted({row for example in store.examples() for row in store.history(example.user_id).tolist()})
    return list(zip(store.documents(rows), store.wholes(rows), strict=True))


@pytest.mark.long
def test_killed_while_documents_are_cut_and_run_again_the_store_is_as_if_it_never_was(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = Plan(config).store.value
    cache = tmp_path / "killed"
    for document in (1, 20, 59):  # of 60
        assert status(KILLED, config, cache, str(document)) == -signal.SIGKILL
        (left,) = (cache / "data").glob("[!.]*.partial")
        assert not left.with_suffix("").exists()
    monkeypatch.setenv("PBR_JAX_CACHE", str(cache))
    again = Plan(config).store.value
    assert not list((cache / "data").glob("*.partial"))
    assert again.content == whole.content
    assert rows_of(again) == rows_of(whole)
    assert len(rows_of(whole)) > 60
