"""Summaries of a user's turns: written by the model, found by later turns of the same user alone."""

import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import dialogue_files
import numpy as np
import pytest

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store, build
from pbr_jax.llm import Sampling, load
from pbr_jax.methods.retrieve.summaries import PROMPT, Summaries, _read
from pbr_jax.options import Encoder, Stream
from pbr_jax.stream.stage import Block
from pbr_jax.text.encode import TextEncoder


def config(root: Path, tiny_models: dict[str, str], **values: Any) -> Config:
    base = Config(system="summaries", retrieve=Summaries(max_new_tokens=6), stream=Stream(size=1))
    told = {"benchmark.name": "sgd", "benchmark.root": str(root), "benchmark.split": "test",
            "generate.method": "none", "eval.likelihood": "off", "retrieve.least": -1.0}  # fmt: skip
    return override(base, {**told, **tiny_models, **values})


def found(out: Path) -> dict[str, list[tuple[str, float]]]:
    lines = map(json.loads, (out / "predictions.jsonl").read_text().splitlines())
    return {line["id"]: [(d["id"], d["score"]) for d in line["documents"]] for line in lines}


def last_store() -> Store:
    from pbr_jax.base.files import cache_folder

    (file,) = {max(cache_folder().glob("stream/*/states/*/retrieve/store.sqlite"))}
    return Store(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return dialogue_files.write(tmp_path / "data", "sgd")


pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.mark.long
def test_a_turn_finds_summaries_of_earlier_turns_of_its_dialogue_alone(
    root: Path, tiny_models: dict[str, str], tmp_path: Path
) -> None:
    asked = config(root, tiny_models)
    pbr_jax.run(asked, tmp_path / "out")
    rankings = found(tmp_path / "out")
    assert {id: sorted(name for name, _ in ranking) for id, ranking in rankings.items()} == {
        "1_00000-000": [],
        "1_00000-002": ["summary-1_00000-000"],
        "1_00000-004": ["summary-1_00000-000", "summary-1_00000-002"],
        "2_00000-000": [],
        "2_00000-002": ["summary-2_00000-000"],
    }
    store = last_store()
    by_id = {d.id: d for d in store.documents([row for row, _ in store.texts()])}
    llm = load(asked.llm)
    said = "system: For how many?\nuser: Two, at eight"
    (answer,) = llm.generate([[{"role": "user", "content": PROMPT.format(said=said)}]], Sampling(6))
    assert by_id["summary-1_00000-002"].text == _read(answer) != ""
    encoder = TextEncoder(Encoder(model=tiny_models["encoder.model"]))
    query = encoder.encode(["yes"], role="query")[0]
    for id, score in rankings["1_00000-004"]:
        summary = encoder.encode([by_id[id].text], role="document")[0]
        cosine = query @ summary / np.linalg.norm(query) / np.linalg.norm(summary)
        assert score == pytest.approx(cosine, abs=1e-5)
    scores = [score for _, score in rankings["1_00000-004"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files")
def test_stores_of_past_blocks_are_closed_and_one_made_anew_is_read_anew(tmp_path: Path) -> None:
    released = tmp_path / "released.sqlite"
    build(released, [pbr_jax.Example("q", "ann", "tea", "tea", "x")])
    method, store = Summaries(), Store(released)

    def make(number: int, text: str) -> Path:
        state = tmp_path / str(number)
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        copy = store.copy_to(state / "store.sqlite")
        copy.append([pbr_jax.Document("d", "ann", text)])
        copy.close()
        return state

    def read(state: Path) -> list[str]:
        return [text for _, text in method.corpus(store, state).texts()]

    states = [make(number, str(number)) for number in range(12)]
    assert [read(state) for state in states] == [[str(number)] for number in range(12)]
    gc.collect()
    held = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert len({Path(file).parent for file in held if file.startswith(str(tmp_path))} - {tmp_path}) <= 4
    assert method.corpus(store, states[-1]) is method.corpus(store, states[-1])
    make(11, "erased")
    assert read(states[-1]) == ["erased"]


def test_the_least_cosine_and_the_number(root: Path, tiny_models: dict[str, str], tmp_path: Path) -> None:
    pbr_jax.run(config(root, tiny_models), tmp_path / "all")
    every = found(tmp_path / "all")
    cut = sorted(score for ranking in every.values() for _, score in ranking)[-2]
    pbr_jax.run(config(root, tiny_models, **{"retrieve.least": cut - 1e-6}), tmp_path / "near")
    assert found(tmp_path / "near") == {
        id: [pair for pair in ranking if pair[1] >= cut - 1e-6] for id, ranking in every.items()
    }
    pbr_jax.run(config(root, tiny_models, **{"retrieve.k": 1}), tmp_path / "one")
    assert found(tmp_path / "one") == {id: ranking[:1] for id, ranking in every.items()}


def test_a_later_question_of_the_user_finds_them_all(
    root: Path, tiny_models: dict[str, str], tmp_path: Path
) -> None:
    pbr_jax.run(config(root, tiny_models), tmp_path / "out")
    system = pbr_jax.open(tmp_path / "out")
    example = pbr_jax.Example("", "test/1_00000", "tea", "user: tea", None, time=float("inf"))
    (ranking,) = system.rank([example])
    assert sorted(c.document.id for c in ranking) == [f"summary-1_00000-00{n}" for n in (0, 2, 4)]
    assert all(c.document.user_id == "test/1_00000" and not c.document.shared for c in ranking)


@pytest.mark.long
def test_turns_of_one_block_do_not_see_one_another(
    root: Path, tiny_models: dict[str, str], tmp_path: Path
) -> None:
    results = pbr_jax.run(config(root, tiny_models, **{"stream.size": 3}), tmp_path / "out")
    assert {id for id, ranking in found(tmp_path / "out").items() if ranking} == set()
    assert results.values["counts"]["summaries_found"] == 0


@pytest.mark.long
def test_turns_arrive_round_by_round(root: Path, tiny_models: dict[str, str], tmp_path: Path) -> None:
    told = {"stream.size": 9, "stream.order": "by_round", "stream.keep": 1}
    results = pbr_jax.run(config(root, tiny_models, **told), tmp_path / "rounds")
    pbr_jax.run(config(root, tiny_models), tmp_path / "one_by_one")
    assert found(tmp_path / "rounds") == found(tmp_path / "one_by_one")
    assert results.values["learned"]["retrieve"] == {"summaries": 5.0, "nothing": 0.0}


@pytest.mark.long
def test_summaries_stand_in_the_prompts_of_answers(
    root: Path, tiny_models: dict[str, str], tmp_path: Path
) -> None:
    told = {"generate.method": "ipa", "generate.max_new_tokens": 4, "prompt.max_tokens": 2000}
    results = pbr_jax.run(config(root, tiny_models, **told), tmp_path / "out")
    assert set(results.metrics) == {"jga", "aga", "jga_exact", "aga_exact"}
    assert results.values["counts"]["unreadable_answers"] == 5
    assert results.values["clusters"] == "units"
    lines = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert "\nsaid: " in lines[1]["prompt"][-1]["content"]
    assert "\nsaid: " not in lines[0]["prompt"][-1]["content"]


def test_learning_that_was_interrupted_begins_anew(tmp_path: Path) -> None:
    first = pbr_jax.Example("q", "u", "tea", "user: tea", None, time=2.0)
    build(tmp_path / "run.sqlite", [first])
    for name in ("state", "out"):
        (tmp_path / name).mkdir()
    store, state, out = Store(tmp_path / "run.sqlite"), tmp_path / "state", tmp_path / "out"
    blocks = [Block([first, first], [], [], [], ["likes tea", ""])]
    (out / "store.sqlite").write_text("half")
    (out / "store.sqlite-wal").write_text("half")
    for _ in range(2):
        Summaries().learn(blocks, state=state, out=out, store=store)
    (document,) = (own := Store(out / "store.sqlite")).documents(own.history("u"))
    assert (document.id, document.text, document.time) == ("summary-q", "likes tea", 2.0)
    assert len(store.history("u")) == 0
    own.close()
    store.close()


def test_without_a_stream_nothing_is_learned(root: Path, tiny_models: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"summaries, which learns from a stream of questions; set stream\.size"
    ):
        pbr_jax.run(config(root, tiny_models, **{"stream.size": None}), tmp_path / "out")
    with pytest.raises(UserError, match=r"retrieve\.least is 2\.0, want a number from -1 to 1"):
        Summaries(least=2.0)


def test_folds_of_users_are_refused_before_the_model_is_asked(
    root: Path, tiny_models: dict[str, str], tmp_path: Path
) -> None:
    options = config(root, tiny_models, **{"stream.size": None, "stream.order": "released",
                                           "stream.protocol": "cross_users"})  # fmt: skip
    with pytest.raises(UserError, match="summaries keeps a corpus of its own"):
        pbr_jax.run(options, tmp_path / "out")


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        ("The user wants\n a table.", "The user wants a table."),
        ("NOTHING", ""),
        (' "Nothing." ', ""),
        ("", ""),
        ("<think>hm</think>Two seats", "Two seats"),
        ("<think>hm", ""),
    ],
)
def test_answers_become_summaries(answer: str, summary: str) -> None:
    assert _read(answer) == summary
