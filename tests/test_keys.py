"""What each field of a config moves: the key of a stage that reads it, or nothing, where it is said here."""

import dataclasses
import inspect
import json
import re
import shutil
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import config as c
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Slot, walk
from pbr_jax.graph.lists import stages
from pbr_jax.methods import METHODS
from pbr_jax.options import JudgeLLM, Method, Options, added, hints, key_of, members_in

CONFIGS = Path(__file__).parents[1] / "configs"
SYSTEMS = {
    "cfrag": {},
    "pbr": {},
    "tuned": {},
    "clusterrag": {"encoder.max_length": 32},
    "purple": {},
    "bm25": {
        "select.method": "bm25",
        "neighbours.method": "random",
        "neighbours.m": 2,
        "collaboration": "text",
    },
}
# Values that a rule of thumb does not find.
OTHERS: dict[str, Any] = {
    "benchmark.split": "train", "benchmark.training": "dev", "benchmark.form": "cfrag",
    "llm.backend": "jax", "llm.extra_body": '{"top_k": 1}', "llm.date": "2025-01-01",
    "encoder.pooling": "cls", "select.own": 1,
    "generate.stop": ["x"], "feedback.metric": "rougeL", "feedback.limit": 3, "feedback.candidates": 3,
    "eval.judge_llm": JudgeLLM(model="x"),
}  # fmt: skip


@pytest.fixture
def plan(tiny_models, write_tweets, tmp_path: Path) -> Callable[..., Plan]:
    tweets = {f"u{i}": [f"i love tea day {j}" for j in range(3)] for i in range(4)}
    write_tweets({f"t{i}": own for i, own in enumerate(tweets.values())}, "train")
    root = write_tweets(tweets)
    released = tmp_path / "released.json"
    released.write_text(json.dumps({u: {"utterances": ["tea"], "reasoning": "cats"} for u in tweets}))
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "llm.model": tiny_models["llm.model"]}
    place["encoder.model"] = tiny_models["encoder.model"]

    def made(name: str, **fields: Any) -> Plan:
        config = c.load(CONFIGS / f"{name}.py").config
        config = override(config, {**place, **SYSTEMS[name]})
        if "select.model" in c.values(config):
            config = override(config, {"select.model": tiny_models["encoder.model"]})
        return Plan(override(config, fields))

    return made


def changed(config: Config, name: str) -> Any:
    """Another value of a field."""
    if name in OTHERS:
        return OTHERS[name]
    *parents, last = name.split(".")
    options: Any = config
    for parent in parents:
        options = getattr(options, parent)
    value, hint = getattr(options, last), hints(type(options))[last]
    kinds = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is typing.Literal:
        return next((k for k in kinds if k != value), value)
    if isinstance(value, tuple):
        return value[:1]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value * 0.5 if value else 0.25
    if isinstance(value, int):
        return value + 1
    if value is None:
        return next({int: 7, float: 0.3, str: "x"}[k] for k in kinds if k is not type(None))
    return value + "x"


NEVER_READ = r"""
    system | keep_texts | eval\..* | stream\..* | remarks\..*
    | corpus\.(?!chunk).* | llm\.(?!ask_again|dtype|date|batch_size|overflow|tensor_parallel).*
    | .*\.training\.(checkpoint_every|track)
"""
"""Fields that change reports, or how something is computed, or that say nothing in these configs."""
GENERATOR, USERS, FEEDBACK = r"generator\.(?!method).*", r"user_encoder\..*", r"feedback\..*"
NOT_READ = {
    "cfrag": GENERATOR,
    "pbr": f"seed | limit_training | {GENERATOR} | {USERS} | {FEEDBACK}",
    "tuned": f"{USERS} | {FEEDBACK}",
    "clusterrag": rf"{USERS} | {FEEDBACK} | generator\.documents",
    "purple": rf"{GENERATOR} | {USERS} | feedback\.(?!limit|shuffle).*",
    "bm25": rf"encoder\..* | {GENERATOR} | {USERS} | {FEEDBACK}",
}


def moves(plan: Callable[..., Plan], name: str, field: str, base: Plan) -> set[str] | None:
    """The stages whose keys a field moves; None where it cannot be changed alone."""
    before = {label: stage.key for label, stage in stages(base.last).items()}
    try:
        other = plan(name, **{field: changed(base.config, field)})
    except UserError:
        return None
    after = {label: stage.key for label, stage in stages(other.last).items()}
    return {label for label in before if after.get(label) != before[label]}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name in ("cfrag", "clusterrag", "tuned")))
        for name in SYSTEMS
    ],
)
def test_every_field_moves_a_stage_that_reads_it(plan: Callable[..., Plan], name: str):
    base = plan(name)
    unread = re.compile(f"{NEVER_READ} | {NOT_READ[name]}", re.VERBOSE)
    wrong = {}
    for field in c.values(base.config):
        slot, _, last = field.partition(".")
        if (last == "method" and slot in c.SLOTS) or last in ("model", "root"):
            continue  # known by their content: see below
        found = moves(plan, name, field, base)
        if found is not None and bool(found) == bool(unread.fullmatch(field)):
            wrong[field] = found
    assert not wrong


def test_training_is_untouched_by_what_it_does_not_read(plan: Callable[..., Plan]):
    base = plan("cfrag")
    trained = {"user_encoder", "retriever", "reranker", "feedback_retriever", "feedback_reranker"}
    assert trained <= {*stages(base.last)}
    for field in ("select.k", "select.own", "eval.resamples", "system", "llm.timeout"):
        assert not trained & (moves(plan, "cfrag", field, base) or set()), field
    assert "retriever" not in (moves(plan, "cfrag", "select.distillation.loss", base) or set())
    read = {"data", "embed", "user_encoder", "rank_for_retriever"}
    assert not read & (moves(plan, "cfrag", "prompt.gamma", base) or set())


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_stage_of_ours_is_kept(plan: Callable[..., Plan], name: str):
    assert plan(name).last.unkept == ""


def test_what_is_known_by_its_content_may_lie_anywhere(
    plan: Callable[..., Plan], tiny_models, tmp_path: Path
):
    """Models and data that are moved are the same; other content under the same path is not."""
    for field in ("encoder.model", "llm.model", "select.model"):
        there = tmp_path / field
        shutil.copytree(tiny_models[field.replace("select", "encoder")], there)
        base, other = plan("cfrag"), plan("cfrag", **{field: str(there)})
        assert base.identity == other.identity, field
        weights = there / "model.safetensors"
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(bytes(raw))
        assert plan("cfrag", **{field: str(there)}).identity["run"] != base.identity["run"], field
    copied = tmp_path / "copied"
    shutil.copytree(plan("cfrag").config.benchmark.root, copied)
    assert plan("cfrag", **{"benchmark.root": str(copied)}).identity == plan("cfrag").identity


def test_a_released_file_is_known_by_its_content(plan: Callable[..., Plan], tmp_path: Path):
    file = tmp_path / "released.json"
    base = plan("pbr", **{"expand.released": str(file)})
    assert "llm" not in base.ranked.needs["expand"].needs
    told = json.loads(file.read_text())
    told["u0"]["reasoning"] = "football"
    other = tmp_path / "other.json"
    other.write_bytes(file.read_bytes())
    assert plan("pbr", **{"expand.released": str(other)}).identity == base.identity
    file.write_text(json.dumps(told))
    assert plan("pbr", **{"expand.released": str(file)}).identity["run"] != base.identity["run"]


def test_a_field_that_is_added_moves_only_what_has_it_and_at_the_value_before_nothing():
    from pbr_jax.methods.retrieve import BM25

    def more(metadata: dict[str, Any]) -> Any:
        item = ("more", int, dataclasses.field(default=3, metadata=metadata))
        return dataclasses.make_dataclass("BM25", [item], bases=(BM25,), frozen=True, kw_only=True)

    assert key_of(more(added(3))(k=7)) == key_of(BM25(k=7)) != key_of(more({})(k=7))
    assert key_of(more(added(3))(k=7, more=4)) == {**key_of(BM25(k=7)), "more": 4}


def takes(method: type[Method]) -> dict[str, inspect.Parameter]:
    """What a slot takes. Where it hands all on to a method that subclasses define, what that one takes."""
    parameters = dict(inspect.signature(method.slot).parameters)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return parameters
    owner = next(base for base in method.__mro__ if "slot" in vars(base))
    for name in sorted(vars(owner).keys() & getattr(owner, "__abstractmethods__", frozenset())):
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(getattr(owner, name)).parameters.values()):
            named = {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
            return named | dict(inspect.signature(getattr(method, name)).parameters)
    return parameters


def test_every_method_names_its_needs_as_its_slot_takes_them():
    """`needs` and `slot` meet by keyword."""
    for slot, methods in METHODS.items():
        for method in methods:
            parameters = takes(method)
            if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                # A method of parts, whose names begin alike; none and auto of generate compute nothing.
                assert any(map(members_in, hints(method).values())) or slot == "generate", method
                continue
            keywords = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
            assert isinstance(method(), Options), (slot, method)
            assert list(parameters)[:2] == ["self", "tally"], method
            assert "run" not in keywords, method


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_needs_of_every_chosen_method_are_what_its_slot_takes(plan: Callable[..., Plan], name: str):
    for node in walk(plan(name).last):
        if isinstance(node, Slot):
            inspect.signature(node.method.slot).bind(None, **dict.fromkeys(node.needs))
            parameters = takes(type(node.method))
            apart = {n for n in node.needs if n not in parameters}
            assert all(n.startswith("of.") for n in apart), (node.method, apart)
            wanted = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
            assert wanted <= set(node.needs), node.method
