"""Sweeps: what is planned, printed, skipped and joined."""

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax import config as c
from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import UserError
from pbr_jax.cli.flags import config as configured
from pbr_jax.cli.main import main
from pbr_jax.sweeps.launcher import _time_left, is_noted, note, own, sweep
from pbr_jax.sweeps.sweep import command, grid, product, seeds, trials, zipped

CONFIG = Path(__file__).parents[1] / "configs" / "ablations" / "system_k.py"

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def flags(write_tweets) -> dict[str, str]:
    root = write_tweets({f"u{i}": [f"tweet {i} {j}" for j in range(i)] for i in range(6)})
    return {"benchmark.name": "lamp_7", "benchmark.root": str(root), "generate.method": "none"}


@pytest.mark.parametrize(
    ("name", "given", "plain"),
    [
        ("retrieve.k", np.arange(1, 4), [1, 2, 3]),
        ("retrieve.b", np.linspace(0.25, 0.75, 3), [0.25, 0.5, 0.75]),
        ("keep_texts", np.array([True, False]), [True, False]),
        ("benchmark.split", np.array(["dev", "train"]), ["dev", "train"]),
        ("stream.size", [np.uint8(5), np.int32(6)], [5, 6]),
        ("generate.stop", [[np.str_("a")], np.array(["b", "c"])], [["a"], ["b", "c"]]),
    ],
)
def test_numbers_of_numpy_are_those_of_python(name: str, given: Any, plain: list[Any]):
    file = c.load(CONFIG)
    base = c.override(file.config, {"retrieve.method": "bm25", "generate.method": "ipa"})
    found = [trials(file._replace(sweep=partial(grid, {name: values})), base) for values in (given, plain)]
    assert found[0] == found[1]
    assert [one.overrides for one in found[0]] == [{name: value} for value in plain]
    assert json.dumps([dict(one.overrides) for one in found[0]])
    assert c.override(base, {name: given[0]}) == c.override(base, {name: plain[0]})


def test_the_algebra_of_sweeps():
    assert list(grid({"a": [1, 2], "b": "xy"})) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    assert list(zipped({"a": [1, 2], "b": "xy"})) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert list(product(grid({"a": [1]}), seeds(2))) == [{"a": 1, "seed": 0}, {"a": 1, "seed": 1}]
    with pytest.raises(UserError, match="lists of one length"):
        list(zipped({"a": [1], "b": "xy"}))


def test_trials_are_named_by_all_that_they_depend_on_and_never_repeated(flags: dict[str, str], weights):
    file = c.load(CONFIG)
    planned = trials(file, c.override(file.config, flags))
    assert len(planned) == len({t.name for t in planned}) == 8
    twice = file._replace(sweep=lambda: [{"retrieve.k": 4}, {"retrieve.k": 4}, {"retrieve.k": 1}])
    assert len(trials(twice, file.config)) == 2
    with pytest.raises(UserError, match=r"unknown config field 'retrieve\.kk'"):
        trials(file._replace(sweep=lambda: [{"retrieve.kk": 4}]), file.config)


def test_a_printed_command_is_the_run(flags: dict[str, str], tmp_path: Path, weights):
    file = c.load(CONFIG)
    base = c.override(file.config, flags)
    trial = trials(file, base)[5]
    line = command(file, trial, tmp_path / "out")
    assert main(shlex.split(line)[1:]) == 0
    saved = json.loads((tmp_path / "out" / trial.name / "config.json").read_text())
    assert c.from_dict(saved) == trial.config


@pytest.mark.long
def test_a_sweep_runs_once_embeds_once_and_makes_one_table(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str], weights
):
    words = ["sweep", str(CONFIG), "--out", str(tmp_path / "out")]
    words += [w for name, value in flags.items() for w in (f"--{name}", value)]
    assert main([*words, "--list"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 8
    assert not (tmp_path / "out").exists()
    assert main([*words, "--index", "6"]) == 0
    made = [p.parent for p in (tmp_path / "out").glob("*/results.json")]
    assert len(made) == 1
    before = (made[0] / "results.json").stat().st_mtime_ns
    assert main(words) == 0
    assert len(list((tmp_path / "out").glob("*/results.json"))) == 8
    assert (made[0] / "results.json").stat().st_mtime_ns == before
    assert len(list((cache_folder() / "embed").glob("*/stage.json"))) == 1
    assert len((tmp_path / "out" / "sweep.jsonl").read_text().splitlines()) == 8
    listed = {json.loads(line)["run"] for line in (tmp_path / "out" / "sweep.jsonl").read_text().splitlines()}
    assert listed == {path.parent.name for path in (tmp_path / "out").glob("*/results.json")}
    capfd.readouterr()
    assert main(["report", str(tmp_path / "out")]) == 0
    table = capfd.readouterr().out
    assert all(system in table for system in ("random", "recency", "bm25", "dense"))


def test_one_failing_run_does_not_stop_the_others(flags: dict[str, str], tmp_path: Path):
    file = c.load(CONFIG)
    methods = {"retrieve.method": ["dense", "bm25"], "encoder.model": ["no-such-model", "all-MiniLM-L6-v2"]}
    base = c.override(file.config, flags)
    with pytest.raises(UserError, match=r"1 of 2 runs failed.*no-such-model"):
        sweep(file._replace(sweep=lambda: zipped(methods)), tmp_path / "out", base)
    assert len(list((tmp_path / "out").glob("*/results.json"))) == 1


@pytest.mark.slow
@pytest.mark.long
def test_runs_in_parallel_processes_give_the_same(flags: dict[str, str], tmp_path: Path, weights):
    file = c.load(CONFIG)
    base = c.override(file.config, {**flags, "retrieve.method": "bm25"})
    two = file._replace(sweep=lambda: grid({"retrieve.k": [1, 2]}))
    apart = sweep(two, tmp_path / "apart", base, max_parallel=2)
    serial = sweep(two, tmp_path / "serial", base)
    assert [r.records() for r in apart] == [r.records() for r in serial]


def test_after_a_change_runs_are_made_anew_beside_the_old_ones(
    flags: dict[str, str], tmp_path: Path, write_tweets
):
    file = c.load(CONFIG)._replace(sweep=lambda: grid({"retrieve.k": [1, 2]}))
    base = c.override(file.config, {**flags, "retrieve.method": "bm25"})
    first = sweep(file, tmp_path / "out", base)
    again = sweep(file, tmp_path / "out", base)
    assert [r.path for r in again] == [r.path for r in first]
    write_tweets({"u0": ["other words"], "u1": ["of other people"]})
    changed = sweep(file, tmp_path / "out", base)
    assert not {r.path for r in changed} & {r.path for r in first}
    assert len((tmp_path / "out" / "sweep.jsonl").read_text().splitlines()) == 4
    assert first[0].records() == again[0].records()


OWN = """
from dataclasses import dataclass
from typing import Literal
from pbr_jax.config import Config
from pbr_jax.methods import retrieve

@dataclass(frozen=True, kw_only=True)
class Sharper(retrieve.BM25):
    method: Literal["sharper"] = "sharper"
    k1: float = 0.5

@dataclass(frozen=True, kw_only=True)
class Nameless(retrieve.BM25):
    pass

def get_config():
    return Config(system="dense", retrieve=retrieve.Dense(k=2))

def sweep():
"""


def test_a_row_may_hold_methods_also_of_ones_own(tmp_path: Path):
    """Listed as plain fields, from which the printed command makes the same run."""
    rows = [
        "{'retrieve': retrieve.BM25(k=2)}",
        "{'retrieve': Sharper(k=3)}",
        "{'retrieve': retrieve.Fused(of=(retrieve.BM25(b=0.5), Sharper(k1=0.7)))}",
    ]
    file = tmp_path / "mine.py"
    file.write_text(OWN + "".join(f"    yield {row}\n" for row in rows))
    loaded = c.load(file)
    planned = trials(loaded, loaded.config)
    assert [dict(trial.overrides) for trial in planned[:2]] == [
        {"retrieve.method": "bm25"},
        {"retrieve.method": "sharper", "retrieve.k": 3},
    ]
    bm25, sharper, fused = (trial.config.retrieve for trial in planned)
    assert (bm25.method, bm25.k, sharper.k, sharper.k1) == ("bm25", 2, 3, 0.5)  # type: ignore[union-attr]
    assert [(one.method, one.k1, one.b) for one in fused.of] == [("bm25", 1.5, 0.5), ("sharper", 0.7, 0.75)]  # type: ignore[union-attr]
    json.dumps([dict(trial.overrides) for trial in planned])
    for trial in planned:
        words = shlex.split(command(loaded, trial, tmp_path / "out"))[2:-2]
        again = configured(words, "pbr-jax run")[1]
        assert c.to_dict(again) == c.to_dict(trial.config)  # the file is run again: a class of its own


def test_a_method_without_a_name_of_its_own_is_refused_in_a_row(tmp_path: Path):
    (tmp_path / "mine.py").write_text(OWN + "    yield {'retrieve': Nameless()}\n")
    loaded = c.load(tmp_path / "mine.py")
    with pytest.raises(UserError, match=r"Nameless in .* has the name of BM25; give it one of its own"):
        trials(loaded, loaded.config)


def test_a_changed_sweep_marks_the_runs_that_it_replaces(tmp_path: Path):
    """Those of the same file and command line alone. An edit that is undone brings them back."""

    def listed() -> dict[str, bool]:
        lines = map(json.loads, (tmp_path / "sweep.jsonl").read_text().splitlines())
        return {one["run"]: one.get("replaced", False) for one in lines}

    note([("a", {}), ("b", {})], tmp_path, own(tmp_path), "here")
    note([("other", {})], tmp_path, own(tmp_path), "seed 2")
    for name in ("a", "b", "other", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert is_noted(["a"], 2, own(tmp_path), "here")
    note([("a", {}), ("c", {})], tmp_path, own(tmp_path), "here")
    assert listed() == {"a": False, "c": False, "b": True, "other": False}
    assert not is_noted(["a"], 1, own(tmp_path), "here")
    assert not is_noted(["a", "b"], 2, own(tmp_path), "here")
    note([("a", {}), ("b", {})], tmp_path, own(tmp_path), "here")
    assert listed() == {"a": False, "b": False, "c": True, "other": False}


def test_a_config_without_a_sweep_is_one_clear_line(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    words = [w for name, value in flags.items() for w in (f"--{name}", value)]
    for more in ([], ["--list"], ["--dry"], ["--index", "0"]):
        assert main(["sweep", "bm25", *words, "--out", str(tmp_path / "out"), *more]) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert "bm25.py: it has no sweep(), so it is one run; start it with pbr-jax run" in error
    assert not (tmp_path / "out").exists()


def test_a_dry_sweep_shows_every_run_and_shared_stages_once(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str], tiny_models
):
    words = ["sweep", str(CONFIG), "--encoder.model", tiny_models["encoder.model"]]
    words += [w for name, value in flags.items() for w in (f"--{name}", value)]
    assert main([*words, "--dry"]) == 0
    text = capfd.readouterr().out
    heads = [line for line in text.splitlines() if not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == [f"run {i} of 8" for i in range(1, 9)]
    assert heads[0] == "run 1 of 8: system random, retrieve.method random, retrieve.k 1: would be run"
    stages = [line.split()[0] for line in text.splitlines() if line.startswith(" ")]
    assert stages.count("data") == stages.count("embed") == 1
    assert stages.count("rank") == 8
    assert text.count("found") == text.count("data  found") == 1  # read for the keys of all others
    assert {path.name for path in cache_folder().iterdir() if path.is_dir()} == {"data"}
    assert main([*words, "--out", str(tmp_path / "out"), "--index", "0"]) == 0
    capfd.readouterr()
    assert main([*words, "--out", str(tmp_path / "out"), "--dry"]) == 0
    text = capfd.readouterr().out
    assert "retrieve.k 1: finished\n  rank  found" in text
    assert text.count("would be run") == 7
    (made,) = (path.parent for path in (tmp_path / "out").glob("*/run.json"))
    with (made / "predictions.jsonl").open("a") as file:
        file.write("\n")
    for index, state in ((0, "would be run"), (7, "would be run")):
        assert main([*words, "--out", str(tmp_path / "out"), "--dry", "--index", str(index)]) == 0
        (head,) = [t for t in capfd.readouterr().out.splitlines() if not t.startswith(" ")]
        assert head.startswith(f"run {index + 1} of 8: ")
        assert head.endswith(f": {state}")
    assert main([*words, "--dry", "--index", "8"]) == 2
    assert "want 0 to 7" in capfd.readouterr().err
    (gone,) = [name for name in ("benchmark.root",) if name in flags]
    assert main([*words, f"--{gone}", str(tmp_path / "none"), "--dry"]) == 2
    told = capfd.readouterr()
    assert told.out.count("would be refused") == 8
    assert told.err.count("\n") == 1


def test_a_sweep_says_which_run_it_is_and_the_time_left(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """Runs that are there already take no time: they are not in the estimate."""
    assert _time_left([], 4, 2) == _time_left([7.0], 0, 2) == ""
    for spent, words in (([100.0, 300.0], "3 min"), ([7.0], "7 s"), ([119.0], "119 s"), ([9000.0], "2 h")):
        assert _time_left(spent, 2, at_once=2) == f", about {words} left"
    file = c.load(CONFIG)._replace(sweep=lambda: grid({"retrieve.k": [1, 2, 3]}))
    base = c.override(file.config, {**flags, "retrieve.method": "bm25"})
    sweep(file, tmp_path / "out", base)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("run ")]
    assert told[0] == "run 1 of 3: retrieve.k 1"
    assert re.fullmatch(r"run 2 of 3, about \d+ s left: retrieve\.k 2", told[1])
    sweep(file, tmp_path / "out", base)
    assert "left" not in capfd.readouterr().err


def test_a_report_on_an_unfinished_sweep_names_the_missing_runs(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """One that was killed, and one that is refused."""
    file = c.load(CONFIG)
    rows = [
        {"retrieve.k": 1},
        {"retrieve.k": 2},
        {"retrieve.method": "dense", "encoder.model": "no-such-model"},
    ]
    base = c.override(file.config, {**flags, "retrieve.method": "bm25"})
    with pytest.raises(UserError, match="1 of 3 runs failed"):
        sweep(file._replace(sweep=lambda: rows), tmp_path / "out", base)
    (tmp_path / "out" / trials(file._replace(sweep=lambda: rows[:1]), base)[0].name / "results.json").unlink()
    capfd.readouterr()
    assert main(["report", str(tmp_path / "out")]) == 0
    assert (
        "2 of the sweep's 3 runs are not finished, and missing here: retrieve.k 1; "
        "retrieve.method dense, encoder.model no-such-model"
    ) in capfd.readouterr().out
    for file in (tmp_path / "out").glob("*/results.json"):
        file.unlink()
    assert main(["report", str(tmp_path / "out")]) == 2
    assert "none of the sweep's 3 runs is finished" in capfd.readouterr().err.splitlines()[-1]


def test_a_report_on_runs_made_one_by_one_names_the_missing_ones(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """As on a cluster, each by its index; all of them list the whole sweep."""
    file = c.load(CONFIG)._replace(sweep=lambda: grid({"retrieve.k": [1, 2, 3]}))
    base = c.override(file.config, {**flags, "retrieve.method": "bm25"})
    lists = []
    for index in (1, 0):
        sweep(file, tmp_path / "out", base, part=slice(index, index + 1))
        lists.append((tmp_path / "out" / "sweep.jsonl").read_text())
        left = ["; retrieve.k 3", "here: retrieve.k 3"][index == 0]
        assert main(["report", str(tmp_path / "out")]) == 0
        assert left in capfd.readouterr().out
    assert lists[0] == lists[1]
    sweep(file, tmp_path / "out", base, part=slice(2, 3))
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "not finished" not in capfd.readouterr().out


def test_another_method_is_told_by_the_name_of_the_row(
    flags: dict[str, str], capfd: pytest.CaptureFixture[str]
):
    """Whether a command line, Python, or a sweep sets it; how answers are measured is no other system."""

    def system(*words: str) -> str:
        return configured(["dense", *words], "pbr-jax run")[1].system

    assert system("--retrieve.k", "3", "--generate.method", "none") == "dense"
    assert system("--retrieve.method", "dense") == "dense"
    assert system("--retrieve.method", "bm25") == "dense, retrieve.method bm25"
    assert system("--retrieve.method", "bm25", "--system", "mine") == "mine"
    assert system("--retrieve.method=bm25", "--system=dense") == "dense"
    assert system("--generate.method", "replug") == "dense, generate.method replug"
    assert system("--generator.method", "lora", "--expand.method", "hyde") == (
        "dense, expand.method hyde, generator.method lora"
    )
    file = c.load(CONFIG)
    base = c.override(file.config, {**flags, "select.method": "bm25", "retrieve.method": "bm25"})
    assert base.system == "dense, retrieve.method bm25, select.method bm25"
    again = c.override(base, {"retrieve.method": "recency"})
    assert again.system == "dense, select.method bm25, retrieve.method recency"
    rows = [{"system": "random", "retrieve.method": "random"}, {"retrieve.k": 2}, {"system": "mine"}]
    named = [trial.config.system for trial in trials(file._replace(sweep=lambda: rows), base)]
    assert named == [
        "random, select.method bm25",
        "dense, retrieve.method bm25, select.method bm25",
        "mine, retrieve.method bm25, select.method bm25",
    ]


@pytest.mark.parametrize("held", ["dev_questions.json", "sweep.jsonl"])
def test_a_folder_that_holds_something_else_is_left_as_it_is(
    flags: dict[str, str], tmp_path: Path, held: str, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / "mine"
    out.mkdir()
    (out / held).write_text("of mine\n")
    words = [w for name, value in flags.items() for w in (f"--{name}", value)]
    assert main(["sweep", str(CONFIG), *words, "--out", str(out)]) == 2
    assert "choose a new --out" in capfd.readouterr().err.splitlines()[-1]
    assert [(p.name, p.read_text()) for p in out.iterdir()] == [(held, "of mine\n")]


def test_a_runs_folder_is_no_sweeps_folder(
    flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    words = [w for name, value in flags.items() for w in (f"--{name}", value)]
    assert main(["run", "bm25", *words, "--out", str(tmp_path / "out")]) == 0
    before = {p: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert main(["sweep", str(CONFIG), *words, "--out", str(tmp_path / "out")]) == 2
    assert "holds a run" in capfd.readouterr().err
    assert before == {p: p.read_bytes() for p in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", "it gives None"),
        ("return 5", "it gives 5"),
        ("return {'retrieve.k': 4}", "it gives 'retrieve.k'"),
        ("yield 5", "it gives 5"),
        ("yield [1]", "it gives [1]"),
        ("yield {1: 2}", "it gives {1: 2}"),
        ("yield {'seed': {}}", "seed is {} (dict), want int"),
        ("yield {'user_encoder': {'training': Training()}}", "wants dicts of plain values by dotted names"),
        ("yield {'generate.temperature': float('inf')}", "wants dicts of plain values"),
        ("raise ValueError('out of luck')", "line 5: ValueError: out of luck"),
        ("return grid({'retrieve.k': []})", "sweep() gives no runs"),
        ("yield {'retrieve.kk': 3}", "unknown config field 'retrieve.kk'"),
    ],
)
def test_a_wrong_sweep_is_one_line_with_its_file(
    body: str, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    path = tmp_path / "mine.py"
    path.write_text(
        "from pbr_jax.config import Config, Training\n\n"
        "from pbr_jax.sweeps import grid, zipped\ndef get_config(): return Config()\n"
        f"def sweep(): {body}\n"
    )
    assert main(["sweep", str(path), "--out", str(tmp_path / "out"), "--list"]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"pbr-jax: error: {path}")
    assert error.count("\n") == 1
    assert told in error


@pytest.mark.parametrize("caller", ["grid", "zipped"])
def test_one_value_in_the_place_of_a_list_is_told(caller: str, tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(
        f"from pbr_jax.config import Config\nfrom pbr_jax.sweeps import {caller}\n"
        f"def get_config(): return Config()\ndef sweep(): return {caller}({{'retrieve.k': 3}})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pbr_jax", "sweep", str(path), "--out", str(tmp_path / "out"), "--list"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip  # in a process of its own: here tests check types too
    assert done.returncode == 2
    told = f"{path}: {caller}() wants lists of values, found 3 for retrieve.k"
    assert told in done.stderr.splitlines()[-1]


def test_a_sweep_that_is_no_function_is_told(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from pbr_jax.config import Config\nsweep = 3\ndef get_config(): return Config()\n"
    )
    with pytest.raises(UserError, match=r"mine\.py: sweep is 3, want a function"):
        c.load(tmp_path / "mine.py")


@pytest.mark.parametrize(
    "text", ["-x", "--k=v", "--", "-h", "--help", "--out", "a b", "x=y", "", "a\nb", "x.py"]
)
def test_values_of_any_form_survive_the_printed_command(
    text: str, flags: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = c.load(CONFIG.parents[1] / "bm25.py")._replace(sweep=lambda: [{}])
    base = c.override(file.config, flags)
    changed = c.override(base, {"system": text, "encoder.query_prefix": text, "llm.offline": True})
    changed = c.override(changed, {"generate.stop": ["a b", "\n\n"]})
    words = shlex.split(command(file, trials(file, changed)[0], tmp_path / "out"))[1:]
    assert main([*words, "--dry"]) == 0
    found = [word for word in words[1:-2] if word != "--dry"]
    assert configured(found, "pbr-jax run")[1] == changed


@pytest.mark.parametrize("line", ['{"run": "a"}', '{"run": [], "overrides": {}}', "[1]", "[" * 100_000])
def test_a_list_that_no_sweep_wrote_is_told(line: str, tmp_path: Path):
    (tmp_path / "sweep.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match="was not written by a sweep"):
        own(tmp_path)


def test_a_reranker_is_called_untuned_only_where_it_was_pretrained_to_judge(tmp_path: Path):
    from safetensors.numpy import save_file

    file = c.load(CONFIG.with_name("cfrag_modules.py"))
    folder = tmp_path / "reranker"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for tensor, system, method in (
        ("embeddings.weight", "cfrag, no reranker", "top_k"),
        ("classifier.weight", "cfrag, untuned reranker", "cross_encoder"),
    ):
        save_file({tensor: np.zeros(1, np.float32)}, folder / "model.safetensors")
        base = c.override(file.config, {"select.model": str(folder)})
        found = {trial.config.system: trial.config for trial in trials(file, base)}
        (name,) = [name for name in found if name in ("cfrag, no reranker", "cfrag, untuned reranker")]
        assert (name, found[name].select.method) == (system, method)
        assert c.to_dict(found["cfrag, random reranker"])["select"]["training"]["epochs"] == 0
