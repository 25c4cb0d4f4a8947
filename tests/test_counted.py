"""What of the package counts in the keys of stages: a recorded table, and edits that move nothing.

`tests/closures.json` lists, for each module that makes a stage, the modules whose source counts for it and
how many of their lines do, rounded up to a hundred. To record it anew, after a deliberate change:
PBR_JAX_RECORD_KEYS=1 pytest tests/test_counted.py, and read the diff: a longer list makes more stages anew.
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
    if " Stage(" in file.read_text() and file.name != "graph.py"
)
TRAINED = [
    "pbr_jax.stages.users", "pbr_jax.stages.generator", "pbr_jax.methods.retrieve.tuned",
    "pbr_jax.methods.select.tuned", "pbr_jax.methods.select.purple",
]  # fmt: skip


def test_the_modules_that_count_for_each_stage_are_those_that_are_recorded():
    found = {}
    for module in STAGES:
        parts = sources.counted(module)
        names = " ".join(part.name.removeprefix("pbr_jax.") for part in parts)
        lines = -(-sum(part.lines for part in parts) // 100) * 100
        found[module.removeprefix("pbr_jax.")] = {"lines": lines, "modules": names}
    if "PBR_JAX_RECORD_KEYS" in os.environ:
        TABLE.write_text(json.dumps(found, indent=1) + "\n")
    recorded = json.loads(TABLE.read_text())
    for name in sorted({*found, *recorded}):
        now, before = (set(table.get(name, {}).get("modules", "").split()) for table in (found, recorded))
        assert now == before, (
            f"stages in {name} now count {sorted(now - before)} more and {sorted(before - now)} less; take "
            "the import back, or record the table anew (see the head of this file)"
        )
        assert found[name]["lines"] == recorded[name]["lines"], f"{name}: record the table anew"


def test_closures_are_as_narrow_as_they_have_to_be():
    assert sum(part.lines for part in sources.counted("pbr_jax.stages.vectors")) < 2200
    assert sum(part.lines for part in sources.counted("pbr_jax.methods.select.purple")) < 8000


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """The stages whose code counts otherwise after an edit of a module."""

    def closures() -> dict[str, Any]:
        return {module: sources._closure(module) for module in STAGES}

    def edited(module: str, old: str, new: str) -> set[str]:
        before, read = closures(), sources.source_of
        text = read(f"pbr_jax.{module}").decode()
        assert old in text
        edits = {f"pbr_jax.{module}": (text.replace(old, new) if old else text + new).encode()}
        monkeypatch.setattr(sources, "source_of", lambda name: edits.get(name) or read(name))
        found = {name for name, after in closures().items() if after != before[name]}
        monkeypatch.setattr(sources, "source_of", read)
        return found

    return edited


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("models.pretrained", "want", "please give"),  # in an error
        ("models.bert", '"""BERT, ', '"""Else, '),
        ("train.loop", "", "# a comment\n"),
        ("llm.http.client", "", "OTHER = 1\n"),
        ("terminal", "", "OTHER = 1\n"),
        ("parts.vectors", 'label: str = "embed"', 'label: str = "embedded"'),  # chooses a node
        ("options.training", "epochs: int = 1", "epochs: int = 2"),
    ],
)
def test_edits_that_change_no_result_move_nothing(
    moved: Callable[..., set[str]], module: str, old: str, new: str
):
    assert not moved(module, old, new)


def test_edits_of_what_computes_move_what_uses_it(moved: Callable[..., set[str]]):
    assert moved("data.lamp", "", "OTHER = 1\n") == {"pbr_jax.stages.data"}
    encoding = {"pbr_jax.stages.vectors", "pbr_jax.methods.select.tuned", "pbr_jax.methods.retrieve.tuned"}
    assert encoding <= moved("models.bert", "", "OTHER = 1\n")
    assert {*TRAINED} <= moved("train.loop", "", "OTHER = 1\n") < {*STAGES} - {"pbr_jax.stages.vectors"}


def test_a_room_counts_by_its_version(monkeypatch: pytest.MonkeyPatch):
    """Besides the identity that its nodes have: see the tests below and those of `test_keys`."""
    before = {module: sources._closure(module)[0] for module in STAGES}
    for room, (version, _) in counted.IDENTIFIED.items():
        if not (ROOT / room).is_dir():
            continue
        with monkeypatch.context() as patch:
            patch.setitem(counted.IDENTIFIED, room, (version + 1, ""))
            after = {module: sources._closure(module)[0] for module in STAGES}
        users = {module for module in STAGES if f"{room} {version}" in before[module]}
        assert {module for module in STAGES if after[module] != before[module]} == users, room
        assert users or room in ("data", "tasks", "corpus"), room


@pytest.mark.parametrize(
    ("module", "old"),
    [
        ("corpus.visibility", "rows[~self.leaks_target(example, rows)]"),
        ("corpus.visibility", "np.isnan(ends) | "),
        ("corpus.columns", "rows if alive.all() else "),
    ],
)
def test_the_rule_of_who_sees_what_counts_for_all_that_need_a_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, old: str
):
    read = sources.source_of
    text = read(f"pbr_jax.{module}")
    edited = {f"pbr_jax.{module}": text.replace(old.encode(), b"" if old.endswith(" ") else b"rows")}
    assert text not in edited.values()

    build(tmp_path / "store.sqlite", [], None)
    store = Store(tmp_path / "store.sqlite")
    monkeypatch.setattr(sources, "_own", sources._closure)  # without its memory
    before = data._content(store)
    assert before == data._content(store)
    monkeypatch.setattr(sources, "source_of", lambda name: edited.get(name) or read(name))
    assert before != data._content(store)


def test_every_name_in_the_list_is_a_module():
    rooms = {*counted.IDENTIFIED, *counted.COMPUTES, *counted.PLUMBING, counted.MAKES_CONTENT}
    for name in rooms:
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
