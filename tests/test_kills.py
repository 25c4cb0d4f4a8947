"""A run that is killed again and again, while it trains and while it answers, ends as if it never was.

PBR_JAX_KILLS says how often it is killed (default 2), PBR_JAX_KILLS_SEED draws the same moments again.
"""

import contextlib
import json
import os
import random
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_trained_runs import CONFIGS, SMALL, histories

KILLS = int(os.environ.get("PBR_JAX_KILLS", "2"))
SEED = int(os.environ.get("PBR_JAX_KILLS_SEED", secrets.randbelow(2**32)))
KINDS = {"user_encoder": "training", "retriever": "training", "reranker": "training"} | {
    "feedback": "generating",
    "generate": "generating",
}
TOGETHER = (
    2 if KILLS < 4 else 4
)  # kills of one folder and cache: what is made is never killed again, so then it begins anew
PATIENCE = 300.0  # seconds after which a run hangs
MARK = ', "mark": true'
TOKENS = 16 if KILLS < 4 else 48  # of an answer: how long stages last in which many moments are hit

# Every stage is long, in many pieces that are kept. Of retriever and reranker the last parameters are the
# result, so that every step counts; the user encoder's are the best ones.
LENGTHY = {
    "llm.batch_size": 1, "generate.max_new_tokens": TOKENS, "prompt.max_tokens": 1500,
    "user_encoder.dropout": 0.3, "select.distillation.loss": "reinforce",
    "retrieve.training.selection": 0.0, "select.training.selection": 0.0,
    **{f"{part}.training.{name}": value for part in ("user_encoder", "retrieve", "select")
       for name, value in {"epochs": 4, "evaluate_every": 6, "checkpoint_every": 3, "patience": 99,
                           "optimizer.learning_rate": 1e-3}.items()},
    "user_encoder.training.epochs": 3,
}  # fmt: skip
TARGET = "a b c d e f g h i j k l m n o p q r s t u v w x y z"  # of which the tiny model says some


class Stage(NamedTuple):
    """An artefact: whose, and its key."""

    name: str
    key: str

    @property
    def kind(self) -> str:
        return KINDS.get(self.name, "other")


@dataclass
class Round:
    """A cache and an output folder, and the runs that share them one after another."""

    root: Path
    command: list[str]
    marks: dict[Stage, int] = field(default_factory=dict)  # stages that had come to a step when killed
    said: Path = field(init=False)  # stderr of the latest process

    def __post_init__(self) -> None:
        self.root.mkdir()
        self.said = self.root / "stderr"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """The run in a process group of its own, which is gone when this ends."""
        environment = {**os.environ, "PBR_JAX_CACHE": str(self.cache), "JAX_PLATFORMS": "cpu"}
        with self.said.open("wb") as said, (self.root / "stdout").open("wb") as told:
            process = subprocess.Popen(
                [*self.command, "--out", str(self.out)],
                env=environment, stdout=told, stderr=said, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self) -> None:
        with self.started() as process:
            self.check(process.wait(PATIENCE))

    def check(self, status: int | None) -> None:
        assert status == 0, f"seed {SEED}: the run ended with {status}\n{self.said.read_text()[-4000:]}"

    def under_way(self) -> Stage | None:
        """What the latest process is at, or was: it has said so, and the partial folder is there.

        The folder alone may be left of the process before.
        """
        lines = re.findall(r"^(\w+) ?(\.\.\.|: [\d.]+ s)$", self.said.read_text(), re.MULTILINE)
        if not lines or lines[-1][1] != "...":
            return None
        found = [Stage(path.parent.name, path.stem) for path in self.cache.glob("[!.]*/[!.]*.partial")]
        assert len(found) <= 1, f"seed {SEED}: {found}"
        return found[0] if found and lines[-1][0].startswith(found[0].name) else None

    def folder(self, stage: Stage, suffix: str = "") -> Path:
        return self.cache / stage.name / f"{stage.key}{suffix}"

    def killed(self, target: Stage, pieces: int, moment: float) -> Stage | int | None:
        """Runs on, and kills so many seconds after the target had got on, or was over.

        Args:
          pieces: 1: it has begun; more: so many states of what it keeps while it works were seen.

        Returns:
          What was under way, None where that was none, or the status of a run that ended before.
        """
        deadline, seen = time.monotonic() + PATIENCE, set[int]()
        with self.started() as process:
            while len(seen) < pieces and not self.folder(target).exists():
                if self.under_way() == target:
                    seen.add(self._kept(target))
                if process.poll() is not None:
                    return process.returncode
                assert time.monotonic() < deadline, f"seed {SEED}: {target} never began"
                time.sleep(0.005)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(moment)
            os.killpg(process.pid, signal.SIGKILL)
            if process.wait() != -signal.SIGKILL:
                return process.returncode
        hit = self.under_way()
        if hit is not None and hit.kind == "training":
            self._mark(hit)
        return hit

    def _kept(self, stage: Stage) -> int:
        """Stands for what the next attempt will find: the latest checkpoint, the answers so far."""
        if stage.kind == "training":
            return self._step(stage)
        file = self.cache / "llm.sqlite"
        return file.stat().st_mtime_ns if file.exists() else 0

    def _step(self, stage: Stage) -> int:
        checkpoints = self.folder(stage, ".partial").glob("checkpoints/*")
        return max((int(path.name) for path in checkpoints if path.name.isdecimal()), default=-1)

    def _mark(self, stage: Stage) -> None:
        """Marks the lines of the latest checkpoint in metrics.jsonl: who begins anew loses them."""
        folder, step = self.folder(stage, ".partial"), self._step(stage)
        if (folder / "params.safetensors").exists():  # trained, and its checkpoints have done their work
            self.marks.pop(stage, None)
        elif step > 0:
            self.marks[stage] = step
            lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)  # the last may be torn
            start, end = f'{{"step": {step},', "}\n"
            assert any(line.startswith(start) for line in lines)
            marked = [
                line.removesuffix(end).removesuffix(MARK) + MARK + end if line.startswith(start) else line
                for line in lines
            ]
            (folder / "metrics.jsonl").write_text("".join(marked))

    def content(self) -> dict[str, Any]:
        """All that is left, by place, without seconds, times and inodes; marks are looked at and removed."""
        found: dict[str, Any] = {}
        for path in sorted(p for top in (self.out, self.cache) for p in top.rglob("*")):
            place = path.relative_to(self.root).as_posix()
            assert ".partial" not in place, f"seed {SEED}: {place} is left"
            if path.is_file() and path.suffix != ".lock" and not SQLITE.fullmatch(path.name):
                found[place] = READ.get(path.name, Path.read_bytes)(path)
        found["cache/llm.sqlite"] = answers = _answers(self.cache / "llm.sqlite")
        # Who was in one batch depends on the moment, and the marks on a secret of the cache.
        found["cache/reads.sqlite"] = {key for key, _, _ in answers} - _noted(self.cache / "reads.sqlite")
        for stage, step in self.marks.items():
            lines = (self.folder(stage) / "metrics.jsonl").read_text().splitlines()
            kept = [json.loads(line)["step"] for line in lines if MARK in line]
            assert step in kept, f"seed {SEED}: {stage.name} had come to step {step} and began anew"
        return found


SQLITE = re.compile(r"(llm|reads)\.sqlite(-wal|-shm)?")  # pages lie as they were written


def _answers(file: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT key, kind, value FROM answers ORDER BY key").fetchall()


def _noted(file: Path) -> set[str]:
    """The answers of which it is known whose texts they were made from."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return {key for (key,) in database.execute("SELECT DISTINCT key FROM reads")}


def _without_seconds(path: Path) -> Any:
    """Without their numbers: what was measured has the same names."""
    values = json.loads(path.read_text())
    tallies = {
        stage: {**tally, "seconds": list(tally["seconds"])}
        for stage, tally in values.get("tallies", {}).items()
    }
    return values | {"seconds": list(values["seconds"]), "tallies": tallies, "digest": None}


def _log(path: Path) -> set[Stage]:
    """A killed run finds what it made before, and may not have come to saying that it made it."""
    events = map(json.loads, path.read_text().splitlines())
    return {Stage(event["stage"], event["key"]) for event in events if event["event"] in ("made", "found")}


def _manifest(path: Path) -> Any:
    values = json.loads(path.read_text())
    names = list(values["files"])
    sums = {name: values["files"][name]["sha256"] for name in names if name not in READ}
    return values | {"seconds": None, "digest": None, "files": [names, sums]}


READ: Mapping[str, Callable[[Path], Any]] = {
    "results.json": _without_seconds,
    "tally.json": _without_seconds,
    "log.jsonl": _log,
    "stage.json": _manifest,
    "metrics.jsonl": lambda path: path.read_text().replace(MARK, ""),
    "runs.jsonl": lambda path: set(path.read_text().replace(str(path.parents[1]), "").splitlines()),
    "hashes.json": lambda path: None,  # of files by their inodes and times
}


def _differ(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    return [place for place in sorted({*one, *two}) if one.get(place) != two.get(place)]


@pytest.fixture
def command(tiny_models: dict[str, str], write_tweets: Callable[..., Path]) -> list[str]:
    """CFRAG on tiny models, with stages that are long enough to be killed in."""
    write_tweets(histories("a", 12), "train")
    root = write_tweets(histories("b", 12))
    golds = [{"id": user, "output": TARGET} for user in histories("a", 12)]
    (root / "train_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
    fields = {"benchmark.name": "lamp_7", "benchmark.root": root, **SMALL}
    fields |= {**tiny_models, "select.model": tiny_models["encoder.model"], **LENGTHY}
    flags = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "pbr_jax", "run", str(CONFIGS / "cfrag.py"), *flags]


@pytest.mark.long
def test_killed_at_random_moments_and_run_again_everything_is_as_if_it_never_was(
    command: list[str], tmp_path: Path
):
    whole = Round(tmp_path / "whole", command)
    whole.finish()
    wanted = whole.content()
    events = map(json.loads, (whole.out / "log.jsonl").read_text().splitlines())
    seconds = {Stage(e["stage"], e["key"]): float(e["seconds"]) for e in events if e["event"] == "made"}
    order = list(seconds)

    rng, hits, continued = random.Random(SEED), Counter[str](), 0
    quotas = dict.fromkeys(("training", "generating"), -(-KILLS // 4))
    for attempt in range(3 + KILLS):
        if hits.total() >= KILLS and all(hits[kind] >= n for kind, n in quotas.items()) and continued:
            break
        # One of each kind that is wanted, the others of any stage; in the order in which they come.
        kinds = [[stage for stage in order if stage.kind == kind] for kind in quotas]
        chosen = [rng.choice(stages) for stages in (*kinds, *[order] * (TOGETHER - len(kinds)))]
        killed = Round(tmp_path / f"killed{attempt}", command)
        for target in sorted(chosen, key=order.index):
            left = [stage for stage in order if not killed.folder(stage).exists()]
            later = [stage for stage in left if order.index(stage) >= order.index(target)]
            if not left:
                break
            target = (later or left)[0]
            # Before anything is kept, or after. What compiles in the first run is faster afterwards.
            pieces = rng.choice((1, 3)) if continued else 3
            pieces = pieces if target.kind in quotas else 1
            moment = rng.random() * (0.05 if pieces > 1 else rng.choice((0.1, 0.5))) * seconds[target]
            hit = killed.killed(target, pieces, moment)
            if isinstance(hit, int):
                killed.check(hit)
                break
            hits[hit.kind if hit else "other"] += 1
            print(f"{killed.root.name}: wanted {target.name}, hit {hit and hit.name}", file=sys.stderr)
        killed.finish()
        differ = _differ(killed.content(), wanted)
        assert not differ, f"seed {SEED}: other than in {whole.root} are, in {killed.root}: {differ}"
        continued += len(killed.marks)
    else:
        pytest.fail(f"seed {SEED}: too few of {KILLS} kills hit what they should: {hits}, {continued=}")
    print(f"seed {SEED}: {dict(hits)}, {continued} trainings went on", file=sys.stderr)
