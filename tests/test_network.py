"""Nothing is connected to that the config does not name: whole runs where every connection and look-up fails.

The guard is an audit hook of a process of its own, set before anything is imported, so whatever Python
code opens a socket meets it, and an attempt that the code swallows is counted all the same.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CONFIGS = Path(__file__).parents[1] / "configs"
GUARD = """
import atexit, json, sys

attempts = []
forbidden = (
    "socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "socket.getnameinfo",
)

def guard(event, arguments):
    if event in forbidden:
        where = arguments[-1] if event == "socket.connect" else arguments[0]
        where = where[0] if isinstance(where, tuple) else where
        attempts.append([event, where.decode() if isinstance(where, bytes) else str(where)])
        raise OSError("no network here")

sys.addaudithook(guard)
report = sys.argv.pop(1)
atexit.register(lambda: open(report, "w").write(json.dumps(attempts)))
"""
COMMAND = GUARD + "from pbr_jax.cli.main import main\nsys.exit(main())\n"
EVERYTHING = (
    GUARD
    + """
import importlib, pkgutil, pbr_jax
from pbr_jax import config
from pbr_jax import llm

for module in pkgutil.walk_packages(pbr_jax.__path__, "pbr_jax."):
    importlib.import_module(module.name)
llm.load(config.LLM()).num_tokens("hello")
llm.load(config.LLM(backend="http", url="http://127.0.0.1:9/v1", model="m")).num_tokens("hello")
"""
)


class Outcome(NamedTuple):
    code: int
    stderr: str
    attempts: list[Any]


def guarded(script: str, folder: Path, *arguments: str) -> Outcome:
    """A Python process without a network, and without the variables that tell libraries to do without one."""
    report = folder / "attempts.json"
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(report), *arguments],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    return Outcome(done.returncode, done.stderr, json.loads(report.read_text()))


def run(config: str, data: Path, out: Path, **fields: object) -> Outcome:
    small = {"benchmark.name": "lamp_7", "benchmark.root": data, "limit": 2, "generate.max_new_tokens": 2}
    small |= {"prompt.max_tokens": 64, "llm.batch_size": 2, "eval.resamples": 10}
    words = [word for name, value in {**small, **fields}.items() for word in (f"--{name}", str(value))]
    return guarded(COMMAND, out.parent, "run", str(CONFIGS / config), *words, "--out", str(out))


@pytest.fixture
def tweets(write_tweets) -> Path:
    return write_tweets({"ann": ["the cat sat on my sofa", "i love my cat"], "bob": ["what a goal that was"]})


@pytest.mark.long
@pytest.mark.slow
def test_a_whole_run_connects_to_nothing(tiny_models, tweets, tmp_path):
    outcome = run("dense.py", tweets, tmp_path / "out", **tiny_models)
    assert outcome.code == 0, outcome.stderr
    assert outcome.attempts == []
    assert json.loads((tmp_path / "out" / "results.json").read_text())["n"] == 2


@pytest.mark.parametrize(("host", "scheme"), [("127.0.0.1", "http"), ("llm.example", "https")])
def test_a_model_on_a_server_is_the_one_thing_that_connects(tweets, tmp_path, monkeypatch, host, scheme):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    url = f"{scheme}://{host}/v1"
    fields = {"llm.backend": "http", "llm.url": url, "llm.model": "m", "llm.retries": 0, "llm.concurrency": 1}
    outcome = run("recency.py", tweets, tmp_path / "out", **fields)
    assert outcome.code == 2, outcome.stderr
    [line] = [line for line in outcome.stderr.splitlines() if url in line]
    assert "connection failed" in line
    assert "no network here" in line
    assert "Traceback" not in outcome.stderr
    assert {where for _, where in outcome.attempts} == {host}


@pytest.mark.usefixtures("weights")
def test_importing_everything_and_loading_models_connects_to_nothing(tmp_path):
    outcome = guarded(EVERYTHING, tmp_path)
    assert outcome.code == 0, outcome.stderr
    assert outcome.attempts == []
