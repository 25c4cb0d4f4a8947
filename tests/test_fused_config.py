"""A retriever made of others in configs: from Python, overrides, the command line, and its JSON."""

import json
from pathlib import Path

import pytest

from pbr_jax import config as c
from pbr_jax.base.types import UserError
from pbr_jax.cli.flags import RUN, SWEEP, parsed
from pbr_jax.config import Config
from pbr_jax.methods import retrieve
from pbr_jax.options import names_of

FUSED = Config(system="fused", retrieve=retrieve.Fused())


def of(words: str) -> Config:
    return parsed(words.split(), FUSED, "pbr-jax")


def test_a_command_line_names_parts_and_their_options():
    found = of("--retrieve.of dense bm25 recency --retrieve.of.bm25.b .5 --retrieve.k 7 --seed 3")
    assert found.retrieve == retrieve.Fused(
        of=(retrieve.Dense(), retrieve.BM25(b=0.5), retrieve.Recency()), k=7
    )
    assert found.system == "fused, retrieve.of dense bm25 recency"
    assert found.seed == 3
    assert of("--retrieve.of.dense.least_own none --retrieve.of.bm25.k1=2").retrieve == retrieve.Fused(
        of=(retrieve.BM25(k1=2.0), retrieve.Dense())
    )
    other = parsed(["--retrieve.method", "fused", "--retrieve.of", "bm25"], Config(), "pbr-jax")
    assert other.retrieve == retrieve.Fused(of=(retrieve.BM25(),))
    assert other.system == "dense, retrieve.method fused, retrieve.of bm25"
    assert parsed(["--retrieve.method", "fused"], Config(), "p").system == "dense, retrieve.method fused"


def test_two_parts_of_one_method_are_numbered():
    found = of("--retrieve.of bm25 bm25 bm25 --retrieve.of.bm25_2.b .2 --retrieve.of.bm25_3.b .3")
    assert isinstance(found.retrieve, retrieve.Fused)
    assert list(found.retrieve.parts) == names_of(found.retrieve.of) == ["bm25", "bm25_2", "bm25_3"]
    assert [part.b for part in found.retrieve.of] == [0.75, 0.2, 0.3]  # type: ignore[attr-defined]


def test_overrides_say_the_same_and_parts_that_stay_keep_their_options():
    changed = c.override(FUSED, {"retrieve.of.bm25.b": 0.5, "retrieve.of": ["recency", "bm25"]})
    assert changed.retrieve == retrieve.Fused(of=(retrieve.Recency(), retrieve.BM25(b=0.5)))
    again = c.override(changed, {"retrieve.of": ("bm25", retrieve.Dense(least_own=0.1))})
    assert again.retrieve == retrieve.Fused(of=(retrieve.BM25(b=0.5), retrieve.Dense(least_own=0.1)))
    assert again.system == "fused, retrieve.of bm25 dense"
    assert c.override(
        Config(), {"retrieve.method": "fused", "retrieve.of.dense.index": "exact"}
    ).retrieve == (retrieve.Fused(of=(retrieve.BM25(), retrieve.Dense(index="exact"))))
    assert c.values(again)["retrieve.of.dense.least_own"] == 0.1
    assert {"retrieve.of", "retrieve.of.bm25.b"} <= set(c.values(again))


def test_it_survives_json_with_classes_of_ones_own(tmp_path: Path):
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import Literal\n"
        "from pbr_jax.config import Config\n"
        "from pbr_jax.methods import retrieve\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(retrieve.Recency):\n"
        "    method: Literal['mine'] = 'mine'\n"
        "    speed: float = 1.0\n"
        "def get_config():\n"
        "    return Config(retrieve=retrieve.Fused(of=(Mine(speed=2.0), retrieve.BM25(b=.1))))\n"
    )
    config = c.load(tmp_path / "own.py").config
    values = json.loads(json.dumps(c.to_dict(config)))
    read = c.from_dict(values)
    assert c.to_dict(read) == c.to_dict(config)
    assert c.values(read)["retrieve.of.mine.speed"] == 2.0
    assert c.from_dict(json.loads(json.dumps(c.to_dict(FUSED)))) == FUSED
    values["retrieve"]["of"][0]["from"]["code"] = "0"
    with pytest.raises(UserError, match="whose code has changed"):
        c.from_dict(values)
    kept = c.override(config, {"retrieve.of": ["bm25", "mine"], "retrieve.of.mine.speed": 3.0})
    assert c.values(kept)["retrieve.of.mine.speed"] == 3.0


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retrieve.of": ["bm52"]}, ["retrieve.of is 'bm52'", "did you mean bm25?"]),
        ({"retrieve.of": []}, ["retrieve.of is empty"]),
        ({"retrieve.of": [3]}, ["retrieve.of is 3"]),
        ({"retrieve.of": ["fused"]}, ["retrieve.of has fused", "made of others"]),
        ({"retrieve.of": ["luf"]}, ["retrieve.of has luf", "learns from a stream"]),
        ({"retrieve.of.bm25.bb": 1}, ["unknown config field 'retrieve.of.bm25.bb'", "retrieve.of.bm25.b"]),
        ({"retrieve.of.tuned.k": 1}, ["unknown config field 'retrieve.of.tuned.k'"]),
        ({"retrieve.of.bm25": 1}, ["unknown config field 'retrieve.of.bm25'"]),
        ({"retrieve.of.bm25.b": 2}, ["retrieve.b is 2"]),
        ({"retrieve.method": "dense", "retrieve.of": ["bm25"]}, ["belongs to fused", "method is dense"]),
        ({"retrieve.method": "dense", "retrieve.of.bm25.b": 0.1}, ["belongs to fused", "method is dense"]),
        ({"retrieve.depth": 0}, ["retrieve.depth is 0"]),
    ],
)
def test_a_wrong_part_is_told_in_one_line(overrides: dict[str, object], words: list[str]):
    with pytest.raises(UserError) as caught:
        c.override(FUSED, overrides)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--retrieve.of bm52", "did you mean bm25"),
        ("--retrieve.of", "retrieve.of is empty"),
        ("--retrieve.of.bm25.b 2", "from 0 to 1"),
        ("--retrieve.of.bm25.b high", "invalid|float"),
        ("--retrieve.of.bm25.bb 1", "did you mean retrieve.of.bm25.b"),
        ("--retrieve.of bm25 --retrieve.of.dense.k 3", "unknown config field 'retrieve.of.dense.k'"),
        ("--retrieve.method dense --retrieve.of bm25", "belongs to fused"),
    ],
)
def test_a_wrong_word_is_told_in_one_line(words: str, told: str):
    with pytest.raises(UserError, match=told) as caught:
        of(words)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_told():
    values = c.to_dict(FUSED)
    for wrong in (3, [3], ["bm25"], [{"method": "none_such"}], [{"method": "bm25", "bb": 1}]):
        values["retrieve"]["of"] = wrong
        with pytest.raises(UserError, match=r"retrieve"):
            c.from_dict(values)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--corpus.words 200", "corpus.words has no effect, since corpus.chunk is none"),
        ("--prompt.show around", "prompt.show has no effect"),
        ("--retrieve.of.bm25.over documents", r"retrieve.of.bm25.over has no effect"),
    ],
)
def test_an_option_of_passages_without_passages_is_refused(words: str, told: str):
    with pytest.raises(UserError, match=told):
        parsed(words.split(), FUSED, RUN)
    assert parsed([*words.split(), "--corpus.chunk", "words"], FUSED, RUN).corpus.active
    assert not parsed(words.split(), FUSED, SWEEP).corpus.active  # its rows may cut documents
    assert not parsed(["--corpus.chunk", "none"], FUSED, RUN).corpus.active
