"""Questions of users as LaMP-7, methods that learn from them, and a run that is killed."""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SEED = int(os.environ.get("PBR_JAX_KILLS_SEED", secrets.randbelow(2**32)))
WORDS = [f"w{i}" for i in range(12)]
START = "Paraphrase the following tweet without any explanation before or after it: "
FOUR = [0, 1, 0, 2, 3, 1, 3, 3, 2, 0]  # the users of ten questions
UNANSWERED = {"generate.method": "none", "eval.likelihood": "off", "eval.resamples": 20}
LEARNERS = '''
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pbr_jax.config import Config
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Learner, Retrieve, Select, Stream


def read(state):
    file = state / "counts.json"
    return json.loads(file.read_text()) if file.exists() else {}


@dataclass(frozen=True, kw_only=True)
class Trend(Learner, Retrieve):
    """Documents whose words were frequent in past queries."""

    method: Literal["trend"] = "trend"
    calls: str = ""  # a file with a line for each call

    def needs(self, run):
        run.learns_from_others("trend")
        return {"store": run.data}

    def told(self, what):
        if self.calls:
            if Path(self.calls + ".stop").exists() and Path(self.calls).exists():
                raise KeyboardInterrupt
            with Path(self.calls).open("a") as file:
                file.write(what + "\\n")

    def slot(self, tally, *, state, store):
        counts = read(state)

        def score(example, query, rows):
            tally.counts["trend"] += 1
            texts = [document.text.split() for document in store.documents(rows)]
            return np.array([sum(counts.get(word, 0) for word in text) for text in texts], float)

        return scored(store, self.k, score)

    def observe(self, block, *, state, store):
        self.told(f"observe {len(block.examples)}")
        assert not any(e.target or e.alternatives or e.relevant for e in block.examples)
        assert block.likelihoods == []
        return [example.query.split() for example in block.examples]

    def learn(self, blocks, *, state, out, store):
        self.told(f"learn {len(blocks)}")
        counts = Counter(word for block in blocks for words in block.observations for word in words)
        (out / "counts.json").write_text(json.dumps(counts))


@dataclass(frozen=True, kw_only=True)
class Liked(Learner, Select):
    """Documents with the words of past targets."""

    method: Literal["liked"] = "liked"

    @property
    def supervised(self):
        return True

    def slot(self, tally, *, state):
        counts = read(state)
        return lambda examples, queries, rankings: [
            sorted(r, key=lambda c: -sum(counts.get(w, 0) for w in c.document.text.split())) for r in rankings
        ]

    def learn(self, blocks, *, state, out):
        counts = Counter(read(state))
        counts.update(word for example in blocks[-1].examples for word in example.target.split())
        (out / "counts.json").write_text(json.dumps(counts))


def get_config():
    return Config(system="trend", collaboration="signals", retrieve=Trend(k=3), select=Liked(),
                  stream=Stream(size=3))
'''


def draw_text(draw: random.Random, length: int) -> str:
    return " ".join(draw.choices(WORDS, k=length))


def write_lamp(place: Path, questions: list[dict[str, Any]], targets: Sequence[str]) -> dict[str, Any]:
    """Writes questions with their targets; the overrides that name them."""
    golds = [{"id": q["id"], "output": target} for q, target in zip(questions, targets, strict=True)]
    place.mkdir(exist_ok=True)
    (place / "dev_questions.json").write_text(json.dumps(questions))
    (place / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
    return {"benchmark.name": "lamp_7", "benchmark.root": str(place), **UNANSWERED}


def write_four_users(place: Path, canary: str = "") -> dict[str, Any]:
    """Ten questions of four users, each with five tweets. `canary` begins a word of one user each."""
    draw = random.Random(5)
    histories = [[{"id": f"{u}-{j}", "text": draw_text(draw, 4)} for j in range(5)] for u in range(4)]
    questions = [
        {
            "id": f"q{i}",
            "user_id": user,
            "input": START + draw_text(draw, 3) + (f" {canary}{user}" if canary else ""),
            "profile": histories[user],
        }
        for i, user in enumerate(FOUR)
    ]
    return write_lamp(place, questions, [draw_text(draw, 3) for _ in FOUR])


def read_lamp(place: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The questions and their targets."""
    questions = json.loads((place / "dev_questions.json").read_text())
    golds = json.loads((place / "dev_outputs.json").read_text())["golds"]
    return questions, [gold["output"] for gold in golds]


def lines(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's predictions."""
    return [*map(json.loads, (out / "predictions.jsonl").read_text().splitlines())]


def documents(out: Path) -> list[list[str]]:
    """The ids of the documents of each question."""
    return [[document["id"] for document in line["documents"]] for line in lines(out)]


def folds_of(out: Path, count: int) -> list[set[int]]:
    """The users of each fold."""
    blocks = [line["block"] for line in lines(out)]
    return [{user for user, block in zip(FOUR, blocks, strict=True) if block == n} for n in range(count)]


def content(cache: Path) -> dict[str, bytes]:
    """What a stream has left, but for seconds and for what says who made it."""
    (stage,) = (path for path in (cache / "stream").iterdir() if path.is_dir())
    files = (path for path in stage.rglob("*") if path.is_file())
    return {
        str(path.relative_to(stage)): path.read_bytes()
        for path in files
        if path.name not in ("stage.json", "tally.json")
    }


def as_flags(overrides: dict[str, Any]) -> list[str]:
    return [word for name, value in overrides.items() for word in (f"--{name}", str(value))]


def kill_once(
    reached: Callable[[], bool], file: Path, overrides: dict[str, Any], cache: Path, out: Path
) -> None:
    """Starts a run in a process of its own, and kills it once this is so."""
    command = [sys.executable, "-m", "pbr_jax", "run", str(file), *as_flags(overrides), "--out", str(out)]
    environment = {**os.environ, "PBR_JAX_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while not reached():
            assert process.poll() is None, process.communicate()
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()


def same_files(first: Path, second: Path) -> bool:
    """Whether two runs have the same predictions and texts."""
    names = ("predictions.jsonl", "texts.jsonl")
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
