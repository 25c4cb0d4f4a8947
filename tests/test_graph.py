"""Nodes: what their keys depend on, when they compute, and what is computed twice."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.graph import Node, Stage, Value, constant, logging_to, stages, tree, unified, walk
from pbr_jax.options import IDLE, Options, key_of
from pbr_jax.types import UserError


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    made.clear()


@dataclass(frozen=True, kw_only=True)
class Inner(Options):
    rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer(Options):
    k: int = 4
    name: str = "a"
    track: str = field(default="none", metadata=IDLE)
    inner: Inner = field(default_factory=lambda: Inner(rate=0.1))


made: list[str] = []


def make(folder: Path, text: str, **needs: Any) -> None:
    made.append(text)
    (folder / "text").write_text(text + "".join(needs.values()))


def load(folder: Path) -> str:
    return (folder / "text").read_text()


def other(folder: Path) -> str:
    return load(folder).upper()


def stage(text: str, label: str = "", **needs: Node) -> Stage:
    return Stage("words", (text,), needs, make, load, label=label)


def test_defaults_and_idle_fields_are_in_no_key_and_all_else_is():
    assert key_of(Outer()) == {"class": "Outer"} == key_of(Outer(track="wandb", k=4))
    assert key_of(Outer(k=5)) == {"class": "Outer", "k": 5}
    moved = key_of(Outer(inner=Inner()))
    assert moved == {"class": "Outer", "inner": {"class": "Inner"}}
    assert key_of((Outer(k=1), 3, None, "x")) == [{"class": "Outer", "k": 1}, 3, None, "x"]


def test_a_key_is_of_name_options_code_and_needs_and_of_nothing_else():
    base = stage("a", x=stage("b"))
    assert base.key == stage("a", x=stage("b")).key == stage("a", label="told", x=stage("b")).key
    others = [
        stage("c", x=stage("b")),
        stage("a", x=stage("c")),
        stage("a", y=stage("b")),
        stage("a"),
        Stage("other", ("a",), {"x": stage("b")}, make, load),
        Stage("words", ("a",), {"x": stage("b")}, make, _elsewhere()),
    ]
    assert len({base.key, *(node.key for node in others)}) == 7


def _elsewhere() -> Any:
    from pbr_jax.parts.trained import load_saved

    return load_saved


def test_nothing_is_made_before_it_is_asked_for_and_then_once():
    last = stage("last", x=stage("first"))
    assert last.key
    assert not made
    assert last.seconds is None
    assert last.value == "lastfirst"
    assert made == ["first", "last"]
    assert stage("last", x=stage("first")).value == "lastfirst"
    assert made == ["first", "last"]
    assert last.seconds is not None


def test_needs_of_what_is_there_are_not_made_again(tmp_path: Path):
    last = stage("last", x=stage("first"))
    assert last.value
    import shutil

    shutil.rmtree(tmp_path / "cache" / "words" / stage("first").key)
    assert stage("last", x=stage("first")).value == "lastfirst"
    assert made == ["first", "last"]


def test_the_seconds_of_a_stage_are_without_those_of_its_needs(tmp_path: Path):
    import time

    def slow(folder: Path) -> None:
        time.sleep(0.3)
        (folder / "text").write_text("slow")

    last = stage("last", x=Stage("slow", (), {}, slow, load))
    assert last.value == "lastslow"
    assert last.seconds is not None
    assert last.seconds < 0.25


def test_equal_nodes_are_one_after_unification():
    calls = []

    def count(value: int) -> str:
        calls.append(value)
        return str(value)

    def twice() -> Node:
        return Value("count", (1,), {}, count)

    last = unified(stage("last", a=twice(), b=stage("middle", c=twice())))
    assert last.value == "last1middle1"
    assert calls == [1]
    assert [node.name for node in walk(last)] == ["count", "words", "words"]


def test_an_identity_stands_for_the_options_where_it_is_given():
    def of(path: str, content: str) -> str:
        return Value("model", (path,), {}, str, identity=lambda: content).key

    assert of("/a", "x") == of("/b", "x") != of("/a", "y")
    assert constant("seed", 1).key != constant("seed", 2).key
    assert constant("seed", 1).value == 1


def test_checks_run_for_every_node_before_any_work():
    def refuse() -> None:
        raise UserError("no such model")

    bad = Value("model", (), {}, str, check=refuse)
    last = stage("last", x=stage("first", m=bad))
    with pytest.raises(UserError, match="no such model"):
        _check_all(last)
    assert not made


def _check_all(last: Node) -> None:
    for node in walk(last):
        node.check()


def test_a_log_is_told_what_was_made_and_found_and_the_manifest_says_why():
    events: list[dict[str, Any]] = []
    with logging_to(lambda event: events.append(dict(event))):
        last = stage("last", x=stage("first"))
        assert last.value
        assert stage("first").value
    assert [(e["event"], e["key"]) for e in events] == [
        ("made", stage("first").key), ("made", last.key), ("found", stage("first").key),
    ]  # fmt: skip
    manifest = json.loads((last.artefact.path / "stage.json").read_text())
    assert manifest["key"]["needs"] == {"x": stage("first").key}


def test_the_tree_tells_what_would_be_made():
    first = stage("first", label="one")
    last = stage("last", label="two", x=first, y=stage("first", label="one"))
    assert [line.split()[:4] for line in tree(last).splitlines()] == [
        ["two", "would", "be", "made"], ["one", "would", "be", "made"],
    ]  # fmt: skip
    assert first.value
    assert "one  found, made in" in tree(stage("last", label="two", x=stage("first", label="one")))
    assert list(stages(last)) == ["one", "two"]


@pytest.mark.parametrize("name", ["../evil", "", ".", "a/b", "a b"])
def test_a_stage_is_named_as_a_folder_can_be(name: str):
    with pytest.raises(UserError, match="a stage is named"):
        Stage(name, (), {}, make, load)
