"""Streams: blocks are answered before they are learned from; what is killed or damaged is made again."""

import json
import math
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stream_worlds import (
    LEARNERS,
    SEED,
    START,
    WORDS,
    content,
    documents,
    draw_text,
    kill_once,
    read_lamp,
    same_files,
    write_lamp,
)

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, load, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.stages.rankings import Questions, Rankings, rankings

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Writes questions as LaMP-7, each with a history of five tweets; the overrides that name them."""

    def write(count: int, folder: str = "data", targets: dict[int, str] | None = None) -> dict[str, Any]:
        draw = random.Random(5)
        questions = [
            {
                "id": f"q{i}",
                "input": START + draw_text(draw, 6),
                "profile": [{"id": f"q{i}-{j}", "text": draw_text(draw, 4)} for j in range(5)],
            }
            for i in range(count)
        ]
        drawn = {i: draw_text(draw, 3) for i in range(count)} | (targets or {})
        return write_lamp(tmp_path / folder, questions, [*drawn.values()])

    return write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "learners.py"
    path.write_text(LEARNERS)
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return load(file).config


def by_hand(config: Config, count: int, folder: Path, size: int) -> list[list[str]]:
    """The documents of every question, from the data's files and the rules of both learners."""
    questions, targets = read_lamp(folder)
    asked: list[str] = []
    liked: list[str] = []
    found = []
    for start in range(0, count, size):
        block = range(start, min(start + size, count))
        for i in block:
            tweets = questions[i]["profile"]
            ranked = sorted(tweets, key=lambda t: -sum(asked.count(w) for w in t["text"].split()))
            best = sorted(ranked[:3], key=lambda t: -sum(liked.count(w) for w in t["text"].split()))
            found.append([tweet["id"] for tweet in best])
        asked += [word for i in block for word in questions[i]["input"].split(": ", 1)[1].split()]
        liked += [word for i in block for word in targets[i].split()]
    return found


def test_two_learners_block_by_block(config: Config, write, tmp_path: Path):
    found = pbr_jax.run(override(config, write(8)), tmp_path / "out")
    wanted = by_hand(config, 8, tmp_path / "data", 3)
    assert documents(tmp_path / "out") == wanted
    assert [(b["start"], b["end"]) for b in found.values["blocks"]] == []  # nothing was answered
    assert found.values["counts"]["trend"] == 8
    assert [n for n in found.values["notes"] if "select.method liked learns from what users wrote" in n]
    assert not [n for n in found.values["notes"] if "trend learns" in n]


@pytest.mark.parametrize(("size", "keep"), [(3, 1), (100, None), (1, 2)])
def test_sizes_and_kept_states(size: int, keep: int | None, config: Config, write, tmp_path: Path):
    told = {**write(7), "stream.size": size, "stream.keep": keep}
    pbr_jax.run(override(config, told), tmp_path / "out")
    assert documents(tmp_path / "out") == by_hand(config, 7, tmp_path / "data", size)
    states = (tmp_path / "cache" / "stream").glob("*/states/*")
    blocks = -(-7 // size)  # by the last one's state nothing is answered
    kept = range(max(1, blocks - (keep or blocks)), blocks)
    assert sorted(path.name for path in states if path.is_dir()) == [f"{n:05}" for n in kept]


def test_later_targets_change_no_earlier_ranking(config: Config, write, tmp_path: Path):
    """The canary: the second learner reads targets, and may read none of the block that is answered."""
    plain = write(9)
    loud = " ".join(WORDS[:1] * 50)
    other = write(9, "other", targets={3: loud})  # in the second of three blocks
    pbr_jax.run(override(config, plain), tmp_path / "a")
    pbr_jax.run(override(config, other), tmp_path / "b")
    before, after = documents(tmp_path / "a"), documents(tmp_path / "b")
    assert before[:6] == after[:6]
    assert before[6:] != after[6:]


def test_shuffled_questions_arrive_in_another_order(config: Config, write, tmp_path: Path):
    told = {**write(8), "stream.order": "shuffled"}
    for seed in (0, 1):
        pbr_jax.run(override(config, {**told, "seed": seed}), tmp_path / f"{seed}")
    first, second = (documents(tmp_path / f"{seed}") for seed in (0, 1))
    assert first != second
    for found in (first, second):
        assert [one[0].partition("-")[0] for one in found] == [f"q{i}" for i in range(8)]  # joined by id
    (tmp_path / "0" / "results.json").unlink()  # found again
    pbr_jax.run(override(config, told), tmp_path / "0")
    assert documents(tmp_path / "0") == first


@pytest.mark.long
def test_a_system_that_does_not_learn_answers_as_without_a_stream(write, tiny_models, tmp_path: Path):
    told = {**write(5), "generate.method": "auto", "generate.max_new_tokens": 2, "eval.likelihood": "on",
            "prompt.max_tokens": 300, "retrieve.method": "recency", **tiny_models}  # fmt: skip
    plain = pbr_jax.run(override(Config(), told), tmp_path / "plain")
    streamed = pbr_jax.run(override(Config(), {**told, "stream.size": 2}), tmp_path / "streamed")
    lines = streamed.records()
    arrived = [{name: line.pop(name) for name in ("block", "place")} for line in lines]
    assert arrived == [{"block": place // 2, "place": place} for place in range(5)]
    assert [line.pop("over") for line in lines] == [[], [], [], ["second_half"], ["second_half"]]
    assert lines == plain.records()
    assert plain.values["keys"] == streamed.values["keys"]
    assert "blocks" not in plain.values
    blocks = streamed.values["blocks"]
    assert [(b["block"], b["start"], b["end"], b["n"]) for b in blocks] == [
        (0, 0, 2, 2),
        (1, 2, 4, 2),
        (2, 4, 5, 1),
    ]
    for name, value in streamed.metrics.items():  # all are means
        assert sum(b["n"] * b["metrics"][name] for b in blocks) / 5 == pytest.approx(value)
        assert blocks[-1]["running"][name] == value


def test_the_last_state_answers(config: Config, write, tmp_path: Path):
    pbr_jax.run(override(config, write(5)), tmp_path / "out")
    assert not (tmp_path / "cache" / "stream_last").exists()  # made when it is first asked for
    system = pbr_jax.open(tmp_path / "out")
    first = next(iter(system.store.examples()))
    found = [candidate.document.id for candidate in system.rank([first])[0]]
    last = next(path for path in (tmp_path / "cache" / "stream_last").iterdir() if path.is_dir())
    asked, liked = (json.loads((last / slot / "counts.json").read_text()) for slot in ("retrieve", "select"))
    tweets = json.loads((tmp_path / "data" / "dev_questions.json").read_text())[0]["profile"]
    for counts in (asked, liked):
        tweets = sorted(tweets, key=lambda t: -sum(counts.get(w, 0) for w in t["text"].split()))[:3]
    assert found == [tweet["id"] for tweet in tweets]
    assert found != documents(tmp_path / "out")[0]
    word = max(asked, key=lambda word: asked[word])
    system.add("q0", [" ".join([word] * 99)])  # the last state ranks a document that came later
    (ranking,) = system.rank([replace(first, id="new", time=math.inf)])
    assert any(candidate.document.text.startswith(f"{word} {word}") for candidate in ranking)


def test_parts_that_train_see_the_first_state(config: Config, write, tmp_path: Path):
    told = write(4)
    data = tmp_path / "data"
    for name in ("questions", "outputs"):
        (data / f"train_{name}.json").write_text((data / f"dev_{name}.json").read_text().replace('"q', '"t'))
    plan = Plan(override(config, told))
    ranked = rankings(plan.run, Questions(stop=2), "rank_for_training")
    found = list(ranked.value.read(plan.data.value, Questions(stop=2).read(plan.data.value)))
    assert [[c.document.id for c in one] for one in found] == [
        [f"q{i}-{j}" for j in range(3)] for i in range(2)
    ]
    assert [node.name for node in ranked.needs["retrieve"].needs.values() if node.name == "state"] == [
        "state"
    ]


NOTES = """
import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.config import Config
from pbr_jax.corpus.store import Store
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Learner, Retrieve, Stream
from pbr_jax.base.types import Document

opened = functools.cache(Store)


@dataclass(frozen=True, kw_only=True)
class Notes(Learner, Retrieve):
    method: Literal["notes"] = "notes"

    def needs(self, run):
        return {"store": run.data}

    def slot(self, tally, *, state, store):
        return scored(self.corpus(store, state), self.k, lambda example, query, rows: rows.astype(float))

CORPUS

def get_config():
    return Config(system="notes", retrieve=Notes(k=1), stream=Stream(size=2))
"""


def test_a_learner_that_writes_to_a_copy_of_the_corpus(
    write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """docs/howto/learners.md: a question becomes a document of later blocks; the run's store stays."""
    page = Path(__file__).parents[2] / "docs" / "howto" / "learners.md"
    (shown,) = re.findall(r"```python\n# methods of the class\n(.*?)```", page.read_text(), flags=re.DOTALL)
    file = tmp_path / "notes.py"
    file.write_text(NOTES.replace("CORPUS", textwrap.indent(shown, "    ")))
    told = write(5)
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    assert documents(tmp_path / "out") == [
        ["q0-4"], ["q1-4"], ["note-q1", "q2-4"], ["note-q1", "q3-4"], ["note-q3", "q4-4"]
    ]  # fmt: skip
    system = pbr_jax.open(tmp_path / "out")
    (ranking,) = system.rank([next(iter(system.store.examples()))])
    assert [candidate.document.id for candidate in ranking] == ["note-q4", "q0-4"]
    with pytest.raises(
        UserError, match=r"keeps a corpus of its own, .*; change the benchmark's files and run again"
    ):
        system.add("q0", ["tea"])
    (tmp_path / "out" / "results.json").unlink()
    capsys.readouterr()
    pbr_jax.run(
        override(load(file).config, told), tmp_path / "out"
    )  # that a store was read has not damaged it
    assert "stream" not in capsys.readouterr().err


# -- kills and damage --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_stream_of_40_blocks_that_is_killed_ends_as_one_that_was_not(
    file: Path,
    config: Config,
    write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    told = {**write(40), "stream.size": 1}
    pbr_jax.run(override(config, told), tmp_path / "whole")
    wanted = content(tmp_path / "cache")
    cache, target = tmp_path / "killed", random.Random(SEED).randrange(1, 39)
    kill_once(
        lambda: bool(list(cache.glob(f"stream/*/blocks/{target:05}*"))), file, told, cache, tmp_path / "out"
    )
    assert not list(cache.glob("stream/*/stage.json")), f"seed {SEED}: it was not killed"
    monkeypatch.setenv("PBR_JAX_CACHE", str(cache))
    capsys.readouterr()
    pbr_jax.run(override(config, told), tmp_path / "out")
    (done,) = re.findall(r"stream: goes on after (\d+) of 40 blocks", capsys.readouterr().err)
    assert int(done) >= target
    assert content(cache) == wanted, f"seed {SEED}"
    assert same_files(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("keep", [None, 1])
@pytest.mark.parametrize("harmed", ["states/00002/retrieve/counts.json", "blocks/00001/rankings.jsonl"])
def test_what_is_damaged_is_made_again_from_the_last_good_state(
    harmed: str, keep: int | None, config: Config, write, tmp_path: Path
):
    calls = tmp_path / "calls"
    told = {**write(9), "retrieve.calls": str(calls), "stream.keep": keep}
    pbr_jax.run(override(config, told), tmp_path / "out")
    wanted = content(tmp_path / "cache")
    assert calls.read_text().split("\n") == [
        *["observe 3", "learn 1", "observe 3", "learn 2", "observe 3"],
        "",
    ]
    (place,) = (tmp_path / "cache" / "stream").glob(f"*/{harmed}")
    place.write_text("?")
    (tmp_path / "out" / "results.json").unlink()
    calls.unlink()
    pbr_jax.run(override(config, told), tmp_path / "out")
    assert content(tmp_path / "cache") == wanted
    again = {  # what was whole is not made again, but for states that were not kept
        ("states", None): ["learn 2"],
        ("blocks", None): ["observe 3"],
        ("states", 1): ["learn 1", "learn 2"],
        ("blocks", 1): ["learn 1", "observe 3"],
    }[harmed.split("/")[0], keep]
    assert calls.read_text().splitlines() == again


def test_an_observation_is_resumed_within_a_block(config: Config, write, tmp_path: Path):
    calls, stop = tmp_path / "calls", tmp_path / "calls.stop"
    told = override(config, {**write(150), "retrieve.calls": str(calls), "stream.size": 150})
    stop.touch()
    with pytest.raises(KeyboardInterrupt):
        pbr_jax.run(told, tmp_path / "out")
    stop.unlink()
    pbr_jax.run(told, tmp_path / "out")
    assert calls.read_text().splitlines() == ["observe 64", "observe 64", "observe 22"]


def test_what_learners_do_not_look_into_is_not_read(
    config: Config, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else the rankings of all earlier blocks would be read after every block."""
    read, original = Counter[str](), Rankings.read

    def counted(self: Rankings, *args: Any) -> Any:
        read[self._folder.name.split(".")[0]] += 1
        return original(self, *args)

    monkeypatch.setattr(Rankings, "read", counted)
    pbr_jax.run(override(config, {**write(15), "stream.size": 3}), tmp_path / "out")
    learners = 2  # each observes a block once
    assert {block: read[block] for block in sorted(read) if len(block) == 5} == {
        f"{number:05}": learners for number in range(5)
    }


# -- errors ------------------------------------------------------------------------------------------------


def test_a_learner_needs_a_stream(config: Config, write, tmp_path: Path):
    with pytest.raises(UserError, match=r"retrieve.method is trend, .* set stream.size to the number"):
        pbr_jax.run(override(config, {**write(3), "stream.size": None}), tmp_path / "out")
    with pytest.raises(UserError, match=r"stream.size is 0, want at least 1"):
        override(config, {"stream.size": 0})
    with pytest.raises(UserError, match=r"stream.size is none, so there is no stream"):
        override(Config(), {"stream.order": "shuffled"})


OBSERVED = "return [example.query.split() for"


@pytest.mark.parametrize(
    ("code", "replaced", "error"),
    [
        ('(out / "counts.json").write_text(json.dumps(counts))', "pass", "learn wrote nothing after block 0"),
        (OBSERVED, "return [1] + [example.query for", "observe gave 4 values for 3 questions"),
        (OBSERVED, "return [float('nan') for", r"what observe gave is no JSON \(Out of"),
        (OBSERVED, "return [example for", "what observe gave is no JSON"),
    ],
)
def test_a_learner_that_is_wrong_ends_in_one_line(
    code: str, replaced: str, error: str, file: Path, write, tmp_path: Path
):
    file.write_text(LEARNERS.replace(code, replaced))
    with pytest.raises(UserError, match=error) as found:
        pbr_jax.run(override(load(file).config, write(4)), tmp_path / "out")
    assert "\n" not in str(found.value)


def test_a_stream_that_fails_on_resuming_keeps_what_it_has(file: Path, write, tmp_path: Path):
    told = write(9)
    right = 'self.told(f"learn {len(blocks)}")'
    wrong = right + '\n        if len(blocks) == 2:\n            raise ValueError("what?")'
    file.write_text(LEARNERS.replace(right, wrong))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"states 00002: ValueError: what\?"):
            pbr_jax.run(override(load(file).config, told), tmp_path / "out")
        assert len(list((tmp_path / "cache" / "stream").glob("*.partial/blocks/*/rankings.jsonl"))) == 2
    assert main(["report", str(tmp_path / "out")]) == 2
