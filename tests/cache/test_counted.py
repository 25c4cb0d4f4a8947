"""What of the package counts in the keys of stages: a recorded table, and edits that move nothing.

`closures.json` lists, for each module that makes a stage, the modules whose source counts for it. To record
it anew, after a deliberate change: PBR_JAX_RECORD_KEYS=1 pytest tests/cache/test_counted.py, and read the
diff: a longer list makes more stages anew.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.cache import counted, sources
from pbr_jax.corpus.store import Store, build
from pbr_jax.graph import Stage, Value
from pbr_jax.stages import data

TABLE = Path(__file__).with_name("closures.json")
ROOT = Path(str(pbr_jax.__file__)).parent
STAGES = sorted(
    ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
    for file in ROOT.rglob("*.py")
    if " Stage(" in file.read_text() and file.parent.name != "graph"
)


def test_the_modules_that_count_for_each_stage_are_those_that_are_recorded():
    found = {
        module.removeprefix("pbr_jax."): sorted(
            name.removeprefix("pbr_jax.") for name in sources.closure(module).modules
        )
        for module in STAGES
    }
    if "PBR_JAX_RECORD_KEYS" in os.environ:
        lines = (f' "{name}": "{" ".join(modules)}"' for name, modules in found.items())
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    recorded = {name: modules.split() for name, modules in json.loads(TABLE.read_text()).items()}
    for name in sorted({*found, *recorded}):
        now, before = set(found.get(name, ())), set(recorded.get(name, ()))
        assert now == before, (
            f"stages in {name} now count {sorted(now - before)} more and {sorted(before - now)} less; take "
            "the import back, or record the table anew (see the head of this file)"
        )


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """The stages whose code counts otherwise after an edit of a module."""

    def edited(module: str, old: str = "", new: str = "OTHER = 1\n") -> set[str]:
        file, read = sources.file_of(f"pbr_jax.{module}"), sources._read_own
        assert file is not None
        before = {name: sources._closure(name, None).lines for name in STAGES}
        text = file.read_text()
        assert old in text
        content = (text.replace(old, new) if old else text + new).encode()
        monkeypatch.setattr(sources, "_read_own", lambda path: content if path == file else read(path))
        after = {name: sources._closure(name, None).lines for name in STAGES}
        monkeypatch.setattr(sources, "_read_own", read)
        return {name for name in STAGES if after[name] != before[name]}

    return edited


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("llm.http.client", "", "OTHER = 1\n"),
        ("base.terminal", "", "OTHER = 1\n"),
        ("stages.vectors", 'label: str = "embed"', 'label: str = "embedded"'),  # builds a node
        ("options.training", "epochs: int = 1", "epochs: int = 2"),
    ],
)
def test_edits_that_change_no_result_move_nothing(
    moved: Callable[..., set[str]], module: str, old: str, new: str
):
    assert not moved(module, old, new)


def test_edits_of_what_computes_move_what_uses_it(moved: Callable[..., set[str]]):
    assert moved("data.lamp") == {"pbr_jax.stages.data"}
    assert "pbr_jax.stages.vectors" in moved("models.bert")
    trained = {"pbr_jax.methods.select.distilled", "pbr_jax.stages.users"}
    assert trained <= moved("train.loop") < {*STAGES} - {"pbr_jax.stages.vectors"}


def test_a_room_counts_by_its_version(monkeypatch: pytest.MonkeyPatch):
    """Besides the identity that its nodes have: see the tests below and those of `test_keys`."""
    before = {module: sources._closure(module, None).lines for module in STAGES}
    for room, (version, _) in counted.IDENTIFIED.items():
        with monkeypatch.context() as patch:
            patch.setitem(counted.IDENTIFIED, room, (version + 1, ""))
            after = {module: sources._closure(module, None).lines for module in STAGES}
        users = {module for module in STAGES if f"{room} {version}" in before[module]}
        assert {module for module in STAGES if after[module] != before[module]} == users, room
        assert users or room in ("data", "tasks", "corpus"), room


@pytest.mark.parametrize("module", ["corpus.visibility", "corpus.columns"])
def test_the_rule_of_who_sees_what_counts_for_all_that_need_a_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
):
    build(tmp_path / "store.sqlite", [], None)
    store = Store(tmp_path / "store.sqlite")
    monkeypatch.setattr(sources, "_own", lambda root: sources._closure(root, None))  # without its memory
    before = data._content(store)
    assert before == data._content(store)
    file, read = sources.file_of(f"pbr_jax.{module}"), sources._read_own
    monkeypatch.setattr(sources, "_read_own", lambda path: read(path) + b"OTHER = 1\n" * (path == file))
    assert before != data._content(store)


def test_every_name_in_the_list_is_a_module():
    for name in {*counted.IDENTIFIED, *counted.COMPUTES, *counted.PLUMBING, counted.MAKES_CONTENT}:
        place = ROOT.joinpath(*name.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_a_task_is_in_keys_by_its_fields():
    from pbr_jax.tasks import released

    def key(**changes: Any) -> str:
        return Value("task", (dataclasses.replace(released("lamp_4"), **changes),), {}, _same).key

    assert key() == key() != key(max_new_tokens=3)


def _same(value: Any) -> Any:
    return value


def test_an_answer_is_keyed_by_all_that_identifies_its_model(monkeypatch: pytest.MonkeyPatch, tiny_models):
    from pbr_jax.llm.tokens import chat
    from pbr_jax.options import LLM
    from pbr_jax.stages.language_model import _load

    def key(**changes: Any) -> str:
        options = LLM(model=tiny_models["llm.model"], **changes)
        model = Value("llm", (options,), {}, _load, identity=lambda: _load(options).fingerprint)
        return Stage("generate", (), {"llm": model}, _made, _same).key

    keys = {key(), key(dtype="bfloat16"), key(date="2025-01-01")}
    monkeypatch.setattr(chat, "VERSION", f"{chat.VERSION} and another")
    assert len(keys | {key()}) == 4


def _made(folder: Path, *, llm: Any) -> None:
    raise AssertionError("not made")
