"""Ctrl-C: obeyed after a batch, final when repeated."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base import interrupts
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Sampling

# A batch of a minute.
LONG = """
import sys, time
from pbr_jax.base import interrupts
def get_config():
    with interrupts.deferred():
        print("begun", file=sys.stderr, flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(1)
"""
SWEPT = """
import os, sys
from pathlib import Path
from pbr_jax.config import Config, override
long = get_config
def get_config():
    if "run" in sys.argv:
        Path(__file__).with_name(f"begun-{os.getpid()}").touch()
        long()
    return override(Config(), {"retrieve.method": "bm25"})
def sweep():
    yield from ({"retrieve.k": k} for k in (1, 2, 3))
"""
LISTENING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def listening() -> Iterator[None]:
    """As a terminal starts a program, also where these tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts.acknowledged():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def started(*command: str) -> subprocess.Popen[str]:
    """A process in a group of its own, which listens to Ctrl-C also where these tests do not."""
    return subprocess.Popen(
        [sys.executable, "-c", LISTENING, *command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_group(number: int) -> None:
    """Raises ProcessLookupError once no process of the group lives; returns after two minutes."""
    for _ in range(6000):
        os.killpg(number, 0)
        time.sleep(0.02)


def until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    return next(line for line in process.stderr if text in line)


def test_a_batch_is_not_cut_by_the_first_and_ended_by_the_second(tmp_path: Path):
    (tmp_path / "long.py").write_text(LONG)
    with started(
        "-m", "pbr_jax", "run", str(tmp_path / "long.py"), "--out", str(tmp_path / "out")
    ) as process:
        until(process, "begun")
        process.send_signal(signal.SIGINT)
        told = until(process, "stopping")
        assert told == "pbr-jax: stopping after this batch; again to stop now\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == interrupts.INTERRUPTED


def test_outside_a_batch_a_wait_ends(listening: None, capfd: pytest.CaptureFixture[str]):
    threading.Timer(0.05, press).start()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)
    while "again to stop now" not in capfd.readouterr().err:
        time.sleep(0.01)


def test_a_piece_of_work_is_not_cut(listening: None):
    done = []

    def work() -> None:
        with interrupts.deferred():
            for piece in range(3):
                with interrupts.deferred():  # inside another
                    if not piece:
                        press()
                    done.append(piece)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():  # was pressed before
        done.append(4)
    assert done == [0, 1, 2]


def test_an_error_in_a_piece_of_work_leaves_nothing_deferred(listening: None):
    with pytest.raises(ZeroDivisionError), interrupts.deferred():
        _ = 1 / 0
    threading.Timer(0.05, press).start()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)


def test_in_a_program_of_others_ctrl_c_stays_theirs(monkeypatch: pytest.MonkeyPatch):
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        with interrupts.acknowledged(), interrupts.deferred():
            press()
            time.sleep(0)
            assert pressed == [1]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.long
@pytest.mark.parametrize("ask", ["generate", "score"])
def test_the_batch_that_is_under_way_is_kept(
    ask: str, listening: None, tiny_models: dict[str, str], tmp_path: Path
):
    model = JaxLLM(Path(tiny_models["llm.model"]), batch_size=2, dtype="float32")
    llm, prompts = Cached(model, tmp_path / "llm.sqlite"), [f"tea {i}" for i in range(6)]
    kept: list[int] = []

    def on_batch(positions: Any, answers: Any) -> None:
        if not kept:
            press()
        kept.extend(positions)

    calls: dict[str, Callable[[], object]] = {
        "generate": lambda: llm.generate(prompts, Sampling(2), on_batch=on_batch),
        "score": lambda: llm.score(prompts, ["cats"] * 6, on_batch=on_batch),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[ask]()
    assert kept
    found = Answers(tmp_path / "llm.sqlite").export(tmp_path / "answers.jsonl")
    assert found == len(kept)


@pytest.mark.long
def test_processes_of_a_sweep_end_with_it(write_tweets: Callable[..., Path], tmp_path: Path):
    """A terminal sends Ctrl-C to all of them. The first asks them to stop, the second leaves none behind."""
    root = write_tweets({"ann": ["one", "two"], "bob": ["three"]})
    (tmp_path / "long.py").write_text(f"{LONG}{SWEPT}")
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root), "--generate.method", "none"]
    command = [
        "sweep",
        str(tmp_path / "long.py"),
        *place,
        "--max-parallel",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    with started("-m", "pbr_jax", *command) as process:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        until(process, "again to stop now")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == interrupts.INTERRUPTED
        with pytest.raises(ProcessLookupError):
            wait_for_group(process.pid)


def test_ctrl_c_while_modules_are_imported_ends_in_one_line():
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pbr_jax.__main__ import main
class Press:
    def find_spec(self, name, *_):
        if name == "pbr_jax.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "configs"], capture_output=True, text=True, check=False
    )
    assert done.returncode == interrupts.INTERRUPTED
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("pbr-jax: ")
    assert "Traceback" not in done.stderr
