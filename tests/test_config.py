"""Config: what a mistake is told, and that a config survives its own JSON."""

import contextlib
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from pbr_jax import config as c
from pbr_jax.base.files import packaged_configs
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest
from pbr_jax.cli import flags
from pbr_jax.config import Config, Eval, Prompt
from pbr_jax.config.schema import _REMOVED, entries, values
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import METHODS, generate, retrieve
from pbr_jax.options import Method, Options
from pbr_jax.options.base import hints

CONFIGS = sorted(Path(__file__).parents[1].joinpath("configs").rglob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_file_loads_and_survives_json(path: Path):
    file = c.load(path)
    configs = [file.config]
    if file.sweep is not None:
        rows = file.sweep(file.config) if inspect.signature(file.sweep).parameters else file.sweep()
        configs += [c.override(file.config, overrides) for overrides in rows]
    for config in configs:
        values = c.to_dict(config)
        assert c.to_dict(c.from_dict(json.loads(json.dumps(values)))) == values


def test_the_digest_depends_on_every_field_and_not_on_the_order_of_keys():
    base = c.to_dict(Config())
    assert digest(base) == digest(dict(reversed(base.items())))
    changed = {
        digest(c.to_dict(c.override(Config(), {name: value})))
        for name, value in {
            "seed": 1, "retrieve.k": 5, "benchmark.split": "train", "generate.temperature": 0.5,
            "encoder.query_prefix": "q: ", "select.k": 2,
        }.items()
    }  # fmt: skip
    assert len(changed | {digest(base)}) == 7


def test_override_replaces_only_what_it_names():
    config = c.override(Config(), {"retrieve.k": 7, "generate.temperature": 1})
    assert config.retrieve == retrieve.Dense(k=7)
    assert config.generate.temperature == 1.0
    assert config.prompt == Config().prompt


BEFORE = {"optimizer.frozen": "user_encoder.training.", "track": "user_encoder.training."}
REMOVED = [(BEFORE.get(end, "" if "." in end else "retrieve.") + end, said) for end, said in _REMOVED.items()]
ENDS = tuple(f".{end}" for end in _REMOVED)


@pytest.mark.parametrize(("name", "said"), REMOVED)
def test_a_removed_field_that_changed_nothing_is_read_from_older_runs(name: str, said: tuple[Any, str]):
    assert c.override(Config(), {name: said[0]}) == Config()


def test_no_method_has_a_removed_field():
    for slot, methods in METHODS.items():
        for cls in methods:
            names = (f"{slot}.{name}" for name, *_ in entries(cls(), opened=True))
            assert not [name for name in names if name.endswith(ENDS)]
    assert not [name for name in values(Config()) if name.endswith(ENDS)]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retrieve.kk": 1}, ["unknown config field 'retrieve.kk'", "retrieve.k"]),
        ({"retrieve.epsilon": 0.1}, ["belongs to bm25 and bm25_lamp", "retrieve.method is dense"]),
        ({"retreive.k": 1}, ["did you mean retrieve.k"]),
        ({"retrieve": 1}, ["unknown config field 'retrieve'"]),
        ({"retrieve.tokenizer": "words"}, ["'tokenizer' is now 'analyser'", "write 'analyser'"]),
        ({"benchmark.tokenizer": "words"}, ["did you mean"]),
        *(({name: "x"}, [f"{name!r} was removed: {instead}"]) for name, (_, instead) in REMOVED),
        ({"retrieve.k.deep": 1}, ["unknown config field"]),
        ({"retrieve.k": -1}, ["retrieve.k is -1", "at least 1"]),
        ({"retrieve.k": "4"}, ["retrieve.k is '4' (str), want int"]),
        ({"retrieve.k": True}, ["want int"]),
        ({"retrieve.method": "sparse"}, ["want one of none, random, recency, bm25, bm25_lamp, dense"]),
        ({"retrieve.method": "bm25", "retrieve.b": 1.5}, ["retrieve.b is 1.5", "from 0 to 1"]),
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
        ("from pbr_jax.methods.retrieve import Dense\nDense(k=0)", ["line 2: retrieve.k is 0"]),
        (
            "from pbr_jax.methods.retrieve import Dense\nDense(kk=1)",
            ["line 2: Dense has no field 'kk'; did you mean k?"],
        ),
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


def test_another_method_keeps_what_both_have_and_takes_the_rest_after():
    base = c.override(Config(), {"retrieve.k": 9, "expand.method": "pbr", "expand.max_new_tokens": 7})
    changes = {"retrieve.b": 0.5, "retrieve.method": "bm25", "expand.method": "thinkqe", "expand.rounds": 2}
    other = c.override(base, changes)
    assert other.retrieve == retrieve.BM25(k=9, b=0.5)
    assert (other.expand.method, other.expand.max_new_tokens) == ("thinkqe", 7)  # type: ignore[attr-defined]
    assert c.override(other, {"retrieve.method": "bm25"}) == other


def optional(method: type[Method]) -> list[str]:
    """The fields that may be none."""
    return [name for name, hint in hints(method).items() if NoneType in typing.get_args(hint)]


def some_value(method: Any, name: str) -> object:
    """The method's own value of a field, or some number where that is none; None where it takes none such."""
    kinds = typing.get_args(hints(method)[name])
    for value in (getattr(method(), name), *([3] * (int in kinds)), *([0.5] * (float in kinds))):
        with contextlib.suppress(UserError):
            if value is not None and not isinstance(value, Options):
                return method(**{name: value}) and value
    return None


@pytest.mark.parametrize("slot", c.SLOTS)
def test_what_is_none_can_be_given_with_another_method(slot: str):
    """Of each pair of methods every field that is none in the first one, by rule."""
    start = dataclasses.replace(Config(), collaboration="text")
    given_at_all = set()
    for old in METHODS[slot]:
        none: dict[str, Any] = {}
        for name in optional(old):
            with contextlib.suppress(UserError):  # this method needs a value
                none |= {name: None} if old(**{name: None}) else {}
        before = dataclasses.replace(start, **{slot: old(**none)})
        for new in METHODS[slot]:
            shared = {name: some_value(new, name) for name in optional(new) if name in none}
            given = {f"{slot}.{name}": value for name, value in shared.items() if value is not None}
            if not given:
                continue
            overrides = {f"{slot}.method": c.name_of(new), "system": "any", **given}
            after = c.override(before, overrides)
            assert type(getattr(after, slot)) is new
            assert {name: c.values(after)[name] for name in given} == given
            words = [f"--{field}={value}" for field, value in overrides.items()]
            assert flags.parsed(words, before, flags.SWEEP) == after
            given_at_all |= given.keys()
    assert given_at_all >= {"retrieve": {"retrieve.least_own"}, "select": {"select.k"}}.get(slot, set())


def test_a_value_for_all_leaves_the_methods_own_value():
    """`seed` is not `generate.seed`."""
    before = dataclasses.replace(Config(), generate=generate.Ipa(seed=5))
    after = c.override(before, {"seed": 1, "generate.method": "ic_ralm"})
    assert after.seed == 1
    assert after.generate.seed == 5


def test_a_saved_config_of_an_older_schema_is_one_line():
    with pytest.raises(UserError, match="unknown config field 'retriever'"):
        c.from_dict({"system": "cfrag", "retriever": {"alpha": 0.1}})
    with pytest.raises(UserError, match=r"retrieve\.method is 'sparse', want one of none"):
        c.from_dict({"retrieve": {"method": "sparse"}})
    with pytest.raises(UserError, match=r"retrieve\.k is 'many'"):
        c.from_dict({"retrieve": {"method": "bm25", "k": "many"}})


def test_types_are_checked_when_options_are_made_in_python(tmp_path: Path):
    path = tmp_path / "wrong.py"
    path.write_text("from pbr_jax.methods.retrieve import Dense\nDense(k='4')\n")
    words = [sys.executable, "-m", "pbr_jax", "run", str(path), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # here tests check types too
    assert done.returncode == 2
    assert "retrieve.k is '4' (str), want int" in done.stderr.splitlines()[-1]


def test_a_name_of_a_packaged_config_is_found_and_nothing_beside_it(tmp_path: Path):
    assert c.found("dense").name == "dense.py"
    assert c.found("ablations/cfrag_modules").parent.name == "ablations"
    assert c.found(str(CONFIGS[0])) == CONFIGS[0]
    for name in ("../README", "nothing/of/this", "/etc/hostname_"):
        with pytest.raises(UserError, match="there is no config"):
            c.found(name)
    assert all(packaged_configs().values())


@pytest.mark.parametrize(
    "place",
    [3, 0, [], {}, "x:Y", {"file": 3}, {"file": 3, "class": "C"}, {"file": __file__}, {"class": 3},
     {"class": "json:JSONDecoder", "code": []}, {"class": "json:JSONDecoder"}],
)  # fmt: skip
def test_a_place_of_a_class_that_nobody_wrote_is_told(place: object):
    with pytest.raises(UserError, match=r"retrieve\.from is .*, want"):
        c.from_dict({"retrieve": {"method": "own", "from": place}})


@pytest.mark.parametrize(
    "name", ["", ":C", ".relative:C", "nothing_of_this_name:C", "json:C", "json:JSONDecoder"]
)
def test_a_class_that_is_not_found_is_told(name: str):
    with pytest.raises(UserError, match=r"retrieve\.method is"):
        c.from_dict({"retrieve": {"method": "own", "from": {"class": name, "code": "x"}}})


def test_a_file_of_a_class_that_does_not_run_any_more_is_told(tmp_path: Path):
    (tmp_path / "mine.py").write_text("x = 1\ny = 1 / 0\n")
    place = {"file": str(tmp_path / "mine.py"), "class": "C", "code": "x"}
    with pytest.raises(UserError, match=r"mine\.py, line 2: ZeroDivisionError"):
        c.from_dict({"retrieve": {"method": "own", "from": place}})


@dataclass(frozen=True, kw_only=True)
class MyPrompt(Prompt):
    max_tokens: int = 100


@dataclass(frozen=True, kw_only=True)
class MyConfig(Config):
    pass


@dataclass(frozen=True, kw_only=True)
class Odd(Options):
    pair: tuple[int, str] = (1, "a")
    many: tuple[float, ...] = ()
    listed: list[str] = field(default_factory=list)
    free: Any = None


ODD: Any = Odd


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Config(prompt=MyPrompt()), r"prompt is .*\(MyPrompt\), want Prompt"),
        (lambda: Plan(MyConfig()), "found a MyConfig, want a pbr_jax.config.Config itself"),
        (lambda: Config(eval=Eval(confidence=float("nan"))), "eval.confidence is nan, want a finite number"),
        (
            lambda: Odd(),
            r"listed is declared as list\[str\]; options are texts, numbers, switches, or tuples",
        ),
        (lambda: ODD(pair=(1, 2)), r"pair is 2 \(int\), want str"),
        (lambda: ODD(pair=(1,)), r"pair is \(1,\), want 2 values"),
        (lambda: ODD(many=(1, "x")), r"many is 'x' \(str\), want float"),
    ],
)
def test_options_are_of_our_own_classes_and_plain_values(make: Callable[[], object], told: str):
    """Another class of the same name has other defaults, and the same key."""
    with pytest.raises(UserError, match=told):
        make()


def test_as_released_configs_have_the_values_of_the_released_code():
    """CFRAG's pooling, tokens, format, selection, errors and texts; ROPG's raw products."""
    place = Path(__file__).parents[1] / "configs"
    cfrag, ropg = (c.load(place / f"{name}_as_released.py").config for name in ("cfrag", "ropg"))
    assert (cfrag.encoder.pooling, cfrag.prompt.max_tokens, cfrag.benchmark.form) == ("mean", 3000, "cfrag")
    assert cfrag.feedback.errors == "negated"
    for method in (cfrag.retrieve, cfrag.select):
        training = method.training  # type: ignore[attr-defined]
        assert (training.selection, training.dtype) == (0.0, "bfloat16")
    assert (ropg.encoder.normalize, ropg.retrieve.similarity) == ("no", "dot")  # type: ignore[attr-defined]


def below(cls: type[Options]) -> Iterator[type[Options]]:
    """The package's classes of options."""
    for own in cls.__subclasses__():
        yield from below(own)
        if own.__module__.startswith("pbr_jax."):
            yield own


def test_a_number_outside_of_a_fields_bounds_is_told(monkeypatch: pytest.MonkeyPatch):
    """For every bound that a class of options names."""
    outside: set[tuple[type[Options], str, float]] = set()

    def noted(self: Options, name: str, *ends: Any) -> None:
        numbers = (end + step for end, step in zip(ends, (-1, 1)) if not isinstance(end, str))
        outside.update((type(self), name, number) for number in numbers)

    with monkeypatch.context() as patched:
        patched.setattr(Options, "at_least", noted)
        patched.setattr(Options, "between", noted)
        for cls in below(Options):
            with contextlib.suppress(TypeError, UserError):  # an abstract one, one with fields to give
                cls()
    assert len(outside) > 100
    for cls, name, end in outside:
        number = float(end) if "float" in str(hints(cls)[name]) else end
        with pytest.raises(UserError, match=rf"\b{name} is {re.escape(str(number))}"):
            cls(**{name: number})
