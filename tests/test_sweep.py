"""Sweeps: what is planned, printed, skipped and joined."""

import json
import shlex
from pathlib import Path

import pytest

from pbr_jax import config as c
from pbr_jax.cli import main
from pbr_jax.files import cache_folder
from pbr_jax.sweep import command, grid, product, seeds, sweep, trials, zipped
from pbr_jax.types import UserError

CONFIG = Path(__file__).parents[1] / "configs" / "ablations" / "system_k.py"


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def flags(write_tweets) -> dict[str, str]:
    root = write_tweets({f"u{i}": [f"tweet {i} {j}" for j in range(i)] for i in range(6)})
    return {"benchmark.name": "lamp_7", "benchmark.root": str(root), "generate.method": "none"}


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
def test_runs_in_parallel_processes_give_the_same(flags: dict[str, str], tmp_path: Path, weights):
    file = c.load(CONFIG)
    base = c.override(file.config, {**flags, "retrieve.method": "bm25"})
    two = file._replace(sweep=lambda: grid({"retrieve.k": [1, 2]}))
    apart = sweep(two, tmp_path / "apart", base, max_parallel=2)
    serial = sweep(two, tmp_path / "serial", base)
    assert [r.predictions() for r in apart] == [r.predictions() for r in serial]


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
    assert first[0].predictions() == again[0].predictions()


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
