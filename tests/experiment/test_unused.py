"""After `cache gc` every known run is still made of what is there, and nothing else is left."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.corpus import vectors
from pbr_jax.data import synthetic
from pbr_jax.experiment import unused
from pbr_jax.experiment.forgetting import forget

# Runs by name: the first three share data, two of them rankings; the last two are stopped.
RUNS = {
    "k2": "bm25 --retrieve.k 2", "k3": "bm25 --retrieve.k 3", "answered": "bm25 --generate.method ipa",
    "dense": "dense --limit 3", "stopped": "bm25 --limit 5", "killed": "bm25 --limit 6",
}  # fmt: skip
STOPPED = ("stopped", "killed")
LONG_AGO = time.time() - 30 * 86400
MAKING = """
import json, sys
from pbr_jax.cache import artefacts
from pbr_jax.cli.main import main
from pbr_jax.experiment import evaluation
close, evaluated = artefacts._close, evaluation.evaluated
def stop(*values, **more):
    raise KeyboardInterrupt
for name, words in json.load(sys.stdin).items():
    killed = lambda folder: stop() if folder.parent.name == "rank" else close(folder)
    artefacts._close = killed if name == "killed" else close
    evaluation.evaluated = stop if name == "stopped" else evaluated
    main(words)
"""

pytestmark = pytest.mark.long


class Place(NamedTuple):
    """A folder with a cache and runs; the words of the command that made each, and their stages."""

    folder: Path
    words: dict[str, list[str]]

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def stages(self) -> set[str]:
        """Finished and unfinished ones, as NAME/KEY."""
        made = {path.parent for path in self.cache.glob("*/*/stage.json")}
        return {"/".join(path.parts[-2:]) for path in (*made, *self.cache.glob("*/*.*/"))}

    def of(self, name: str) -> set[str]:
        """The keys of stages that a run's log speaks of."""
        lines = (self.run(name) / "log.jsonl").read_text().splitlines()
        return {event["key"] for event in map(json.loads, lines) if "key" in event}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_models: dict[str, str]) -> Place:
    """Runs that another process has made, which has ended."""
    folder = tmp_path_factory.mktemp("made")
    synthetic.generate(folder / "posts", users=8)
    more = {"benchmark.name": "lamp_4", "benchmark.root": str(folder / "posts"), "benchmark.split": "dev"}
    more |= {**tiny_models, "generate.max_new_tokens": "2", "prompt.max_tokens": "60", "eval.resamples": "9"}
    words = {}
    for name, own in RUNS.items():
        quiet = "" if "generate" in own else " --generate.method none --eval.likelihood off"
        fields = [word for field, value in more.items() for word in (f"--{field}", value)]
        fields = [] if quiet else fields[-4:]
        shared = [word for field, value in list(more.items())[:5] for word in (f"--{field}", value)]
        words[name] = ["run", *(own + quiet).split(), *shared, *fields]
    jobs = {name: [*line, "--out", str(folder / "runs" / name)] for name, line in words.items()}
    cache = {"PBR_JAX_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", MAKING]
    subprocess.run(command, input=json.dumps(jobs), env={**os.environ, **cache}, text=True, check=True)
    return Place(folder, words)


Copied = Callable[..., Place]


@pytest.fixture
def copied(made: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """A copy of all, whose cache is the cache then. Some runs are deleted, all stages are old."""

    def copy(name: str, deleted: Iterable[str] = ()) -> Place:
        folder = tmp_path / name
        shutil.copytree(made.folder, folder, ignore=shutil.ignore_patterns("posts", "*.lock"))
        place = Place(folder, made.words)
        runs = [json.dumps(str(place.run(run))) for run in made.words]
        (place.cache / "runs.jsonl").write_text("\n".join(runs))
        for run in deleted:
            shutil.rmtree(place.run(run))
        for stage in place.cache.glob("*/*/"):
            os.utime(stage, (LONG_AGO, LONG_AGO))
        monkeypatch.setenv("PBR_JAX_CACHE", str(place.cache))
        return place

    return copy


def test_after_it_runs_recompute_nothing_and_nothing_else_is_left(
    copied: Copied, capsys: pytest.CaptureFixture[str]
):
    draw = random.Random(0)
    for trial in range(5):
        deleted = [name for name in RUNS if draw.random() < 0.5] if trial else [*RUNS]
        place = copied(f"trial{trial}", deleted)
        before = place.stages()
        assert any(name.endswith(".partial") for name in before)
        known = [name for name in RUNS if name not in deleted]
        keys = set().union(*(place.of(name) for name in known))
        expected = {stage for stage in before if stage.partition("/")[2].partition(".")[0] in keys}
        expected |= {stage for stage in before if stage.endswith(".partial") and "killed" in known}
        dry = unused.collect(dry=True)
        assert place.stages() == before
        freed = unused.collect()
        assert place.stages() == expected
        assert freed.removed == dry.removed
        assert freed.removed == before - expected
        assert [path.name for path in freed.absent] == deleted
        capsys.readouterr()
        for name in known:
            again = place.run(name) if name in STOPPED else place.folder / "again" / name
            assert main([*place.words[name], "--out", str(again)]) == 0
            events = [json.loads(line) for line in (again / "log.jsonl").read_text().splitlines()]
            fresh = {e["key"] for e in events if e["event"] == "made"} - (keys if name in STOPPED else set())
            partial = {stage.partition("/")[2].partition(".")[0] for stage in expected if "." in stage}
            assert fresh <= (partial if name == "killed" else set())
            assert (again / "results.json").is_file()


def test_what_was_read_lately_or_by_a_living_process_stays(copied: Copied, capsys: Any):
    place = copied("read")
    data = "data/" + json.loads((place.run("k2") / "run.json").read_text())["keys"]["data"]
    shutil.rmtree(place.folder / "runs")
    before = place.stages()
    assert main(["run", *place.words["k2"][1:], "--dry"]) == 0  # this process has read the data now
    capsys.readouterr()
    assert main(["cache", "gc", "--keep", "0", "--dry"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert before - listed == {data}
    assert main(["cache", "gc", "--keep", "0"]) == 0
    told = capsys.readouterr().out
    assert place.stages() == {data}
    assert f"deleted: {len(before) - 1} stages, " in told
    assert "kept, read since " in told
    assert "run folders that are not there: 6" in told
    for stage in place.cache.glob("*/*/"):
        os.utime(stage, (LONG_AGO, LONG_AGO))
    assert unused.collect(31).removed == set()
    assert unused.collect(29).removed == {data}


def test_a_stage_that_is_being_made_stays_and_an_unfit_number_of_days_is_an_error(copied: Copied):
    place = copied("making", [*RUNS])
    (partial,) = place.cache.glob("*/*.partial")
    with locked(partial.with_suffix(".lock")):
        assert unused.collect().why == {"/".join(partial.parts[-2:]): "in use now"}
    unused.collect()
    assert place.stages() == set()
    for days in (-1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="want 0 or more days"):
            unused.collect(days)
    with pytest.raises(UserError, match="holds no run"):
        unused.collect(runs=[place.cache])


DYING = """
import os, signal, sys
from pbr_jax.experiment import unused
changing = {"rename", "unlink", "rmdir", "execute", "utime", "close"}
for line in sys.stdin:
    moment, os.environ["PBR_JAX_CACHE"] = line.split()
    if not (child := os.fork()):
        calls = 0
        def count(frame, event, function):
            global calls
            calls += event == "c_call" and function.__name__ in changing
            if calls == int(moment):
                os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(count)
        unused.collect()
        sys.setprofile(None)
        print(calls, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] == signal.SIGKILL:
        print("killed", flush=True)
"""


def test_a_kill_at_any_moment_loses_no_stage_of_a_run_and_the_next_call_ends_it(copied: Copied):
    draw, calls = random.Random(1), 0
    command = [sys.executable, "-c", DYING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None
        for trial in range(12):
            place = copied(f"killed{trial}", ["k2", "dense", "stopped"])
            keys = set().union(*(place.of(name) for name in ("k3", "answered", "killed")))
            needed = {s for s in place.stages() if s.split("/")[1] in keys or s.endswith(".partial")}
            print(draw.randint(1, calls) if trial else -1, place.cache, file=asked, flush=True)
            found = told.readline().strip()
            calls = calls or int(found)
            assert calls > 50
            assert found == "killed" or not trial
            assert needed <= place.stages()
            unused.collect()
            assert place.stages() == needed
        asked.close()


def test_runs_that_are_made_meanwhile_lose_nothing(copied: Copied):
    place, stop, errors = copied("meanwhile", [*RUNS]), threading.Event(), list[str]()
    rest = """
import sys, time
from pathlib import Path
from pbr_jax.experiment import unused
while not Path(sys.argv[1]).exists():
    unused.collect(0)
"""
    end = place.folder / "end"
    with subprocess.Popen([sys.executable, "-c", rest, str(end)]) as collecting:
        for name in ("k2", "k3", "answered"):
            done = main([*place.words[name], "--out", str(place.folder / "anew" / name)])
            errors += [name] if done else []
        stop.set()
        end.touch()
    assert collecting.returncode == 0
    assert errors == []
    runs = json.dumps(str(place.folder / "anew/k2"))
    assert runs in (place.cache / "runs.jsonl").read_text()
    keys = {json.loads((place.folder / "anew" / n / "results.json").read_text())["keys"][s]
            for n in ("k2", "k3") for s in ("data", "rank")}  # fmt: skip
    assert keys <= {stage.split("/")[1] for stage in place.stages()}


def test_vectors_and_answers_of_a_user_are_found_after_the_user_s_data_went(copied: Copied):
    place = copied("vectors", [*RUNS])
    user, text = next(
        (name, text)
        for data in place.cache.glob("data/*/store.sqlite")
        for name, text in sqlite3.connect(data).execute(
            "SELECT name, text FROM documents JOIN texts USING (row) JOIN users ON code = user"
        )
        if holds(place.cache, vectors.digest(text))
    )
    unused.collect()
    assert place.stages() == set()
    assert holds(place.cache, vectors.digest(text))
    with pytest.raises(UserError, match="know no"):
        forget("nobody")
    assert forget(user).vectors
    assert not holds(place.cache, vectors.digest(text))


def holds(cache: Path, word: bytes) -> bool:
    return any(word in file.read_bytes() for file in cache.glob("vectors/*/*"))
