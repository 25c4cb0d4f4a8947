"""Config: what a mistake is told, and that a config survives its own JSON."""

import json
from pathlib import Path

import pytest

from pbr_jax import config as c
from pbr_jax.config import Config, Retrieve
from pbr_jax.types import UserError

CONFIGS = sorted(Path(__file__).parents[1].joinpath("configs").rglob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_file_loads_and_survives_json(path: Path):
    file = c.load(path)
    configs = [file.config]
    if file.sweep is not None:
        configs += [c.override(file.config, overrides) for overrides in file.sweep()]
    for config in configs:
        assert c.from_dict(json.loads(json.dumps(c.to_dict(config)))) == config


def test_the_digest_depends_on_every_field_and_not_on_the_order_of_keys():
    base = c.to_dict(Config())
    assert c.digest(base) == c.digest(dict(reversed(base.items())))
    changed = {
        c.digest(c.to_dict(c.override(Config(), {name: value})))
        for name, value in {
            "seed": 1, "retrieve.k": 5, "benchmark.split": "train", "generate.temperature": 0.5,
            "encoder.query_prefix": "q: ", "select.k": 2,
        }.items()
    }  # fmt: skip
    assert len(changed | {c.digest(base)}) == 7


def test_override_replaces_only_what_it_names():
    config = c.override(Config(), {"retrieve.k": 7, "generate.temperature": 1})
    assert config.retrieve == Retrieve(k=7)
    assert config.generate.temperature == 1.0
    assert config.prompt == Config().prompt


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retrieve.kk": 1}, ["unknown config field 'retrieve.kk'", "retrieve.k"]),
        ({"retreive.k": 1}, ["did you mean retrieve.k"]),
        ({"retrieve": 1}, ["unknown config field 'retrieve'"]),
        ({"retrieve.k.deep": 1}, ["unknown config field"]),
        ({"retrieve.k": -1}, ["retrieve.k is -1", "at least 1"]),
        ({"retrieve.k": "4"}, ["retrieve.k is '4' (str), want int"]),
        ({"retrieve.k": True}, ["want int"]),
        ({"retrieve.method": "sparse"}, ["want one of none, random, recency, bm25, dense"]),
        ({"retrieve.b": 1.5}, ["retrieve.b is 1.5", "from 0 to 1"]),
        ({"limit": 0}, ["limit is 0"]),
        ({"generate.top_p": 2.0}, ["generate.top_p"]),
    ],
)
def test_a_wrong_override_is_told_in_one_line(overrides: dict[str, object], words: list[str]):
    with pytest.raises(UserError) as caught:
        c.override(Config(), overrides)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", ["must define get_config()"]),
        ("def get_config(): return 3", ["must define get_config()"]),
        ("import nothing_of_this_name", ["line 1", "ModuleNotFoundError"]),
        ("x = 1\ny = 1 / 0", ["line 2", "ZeroDivisionError"]),
        ("def get_config(:", ["line 1", "SyntaxError"]),
        ("from pbr_jax.config import *\nRetrieve(k=0)", ["retrieve.k is 0"]),
    ],
)
def test_a_wrong_config_file_is_told_with_its_line(tmp_path: Path, source: str, words: list[str]):
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(UserError) as caught:
        c.load(path)
    assert all(word in str(caught.value) for word in ["broken.py", *words])


def test_a_missing_config_file_is_told(tmp_path: Path):
    with pytest.raises(UserError, match=r"config file not found: .*nowhere\.py"):
        c.load(tmp_path / "nowhere.py")
