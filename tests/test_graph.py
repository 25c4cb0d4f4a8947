"""Nodes: what their keys depend on, when they compute, and what is computed twice."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.graph import Node, Stage, Value, constant, logging_to, walk
from pbr_jax.graph.lists import stages, tree, unified
from pbr_jax.options import IDLE, Options, added, key_of


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
    later: int = field(default=3, metadata=added(3))
    newer: int = field(default=5, metadata=added(4))  # the default was another when it was new


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


def test_all_fields_are_in_keys_by_value_but_idle_ones_and_added_ones_at_the_value_before():
    inner = {"class": "Inner", "rate": 0.1}
    told = {"class": "Outer", "k": 4, "name": "a", "inner": inner, "newer": 5}
    assert key_of(Outer()) == told == key_of(Outer(track="wandb", later=3))
    assert key_of(Outer(k=5)) == {**told, "k": 5}
    assert key_of(Outer(later=4)) == {**told, "later": 4}
    assert key_of(Outer(newer=4)) == {name: value for name, value in told.items() if name != "newer"}
    assert key_of(Outer(inner=Inner())) == {**told, "inner": {"class": "Inner", "rate": 0.5}}
    assert key_of((Inner(), 3, None, "x")) == [{"class": "Inner", "rate": 0.5}, 3, None, "x"]


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
    from pbr_jax.stages.trained import load_saved

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


def test_dependents_of_a_stage_with_content_are_keyed_by_that():
    def dependent(text: str, content: str) -> Stage:
        return stage("last", x=Stage("words", (text,), {}, make, load, content=lambda value: content))

    same, other = dependent("a", "one"), dependent("b", "one")
    assert same.needs["x"].key != other.needs["x"].key
    assert same.key == other.key != dependent("a", "two").key
    assert sorted(made) == ["a", "b"]  # when the key was asked for
    assert same.value == "lasta"
    assert dependent("c", "one").value == "lasta"
    assert made == ["a", "b", "last", "c"]


@pytest.mark.long
def test_a_chain_of_stages_has_no_length_that_is_too_long():
    nodes: list[Node] = [constant("first", 0)]
    for number in range(1100):  # more than Python's limit of recursion
        kind = Value("link", (number,), {"x": nodes[-1]}, _add)
        nodes.append(
            Stage("link", (number,), {"x": nodes[-1]}, _count, _number) if number % 100 == 0 else kind
        )
    last = unified(nodes[-1])
    assert len(walk(last)) == 1101
    assert tree(last).count("would be made") == 11 == len(stages(last))
    assert last.value == 1100
    assert tree(last, set()).count("found") == 11


def _add(number: int, *, x: int) -> int:
    return x + 1


def _count(folder: Path, number: int, *, x: int) -> None:
    (folder / "number").write_text(str(x + 1))


def _number(folder: Path) -> int:
    return int((folder / "number").read_text())
