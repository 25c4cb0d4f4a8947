"""Processes in which no run ends are refused at once: those that would wait for each other or for ever."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from pbr_jax.cli.main import main

CONFIG = """
import os, jax
from pbr_jax.config import Config, override
jax.distributed.initialize(os.environ["PLACE"], 2, int(os.environ["NUMBER"]))
def get_config():
    return override(Config(), {"retrieve.method": "bm25"})
def sweep():
    yield from ({"retrieve.k": k} for k in (1, 2))
"""


def test_two_processes_are_refused_in_one_line(write_tweets: Callable[..., Path], tmp_path: Path):
    root = write_tweets({"ann": ["one", "two"], "bob": ["three"]})
    (tmp_path / "two.py").write_text(CONFIG)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = [str(tmp_path / "two.py"), "--benchmark.name", "lamp_7", "--benchmark.root", str(root)]
    words += ["--generate.method", "none", "--out", str(tmp_path / "out")]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "pbr_jax", command, *words], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PLACE": place, "NUMBER": str(number), "JAX_PLATFORMS": "cpu"},
        )
        for number, command in enumerate(("run", "sweep"))
    ]  # fmt: skip
    for process in both:
        _, told = process.communicate(timeout=60)
        errors = [line for line in told.splitlines() if line.startswith("pbr-jax: ")]
        assert process.returncode == 2, told
        assert len(errors) == 1
        assert "one of several processes under jax.distributed.initialize" in errors[0]
    assert not (tmp_path / "out").exists()


ENDLESS = """
import multiprocessing, os, sys
import pbr_jax

def one(seed):
    try:
        pbr_jax.run("bm25", "child", {"generate.method": "none"}, limit=3, seed=seed)
        return "made"
    except pbr_jax.UserError as error:
        return str(error)

if __name__ == "__main__":
    start, before = sys.argv[1:]
    if before == "run":
        pbr_jax.run("dense", "parent", {"generate.method": "none"}, limit=3)
    elif before == "jax":
        pbr_jax.run  # imported before JAX starts
        import jax.numpy
        jax.numpy.ones(3) + 1
    else:
        pbr_jax.run
    with multiprocessing.get_context(start).Pool(1) as pool:
        print(pool.map(one, [11])[0])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "before", "wanted"),
    [
        ("fork", "run", "spawn"),
        ("fork", "jax", "spawn"),
        ("fork", "nothing", "made"),
        ("spawn", "jax", "made"),
    ],
)
def test_a_fork_of_a_process_whose_jax_has_started_is_refused(
    tmp_path: Path, start: str, before: str, wanted: str
) -> None:
    (tmp_path / "pool.py").write_text(ENDLESS)
    command = [sys.executable, "pool.py", start, before]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert wanted in told.stdout


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_64_bits_are_refused_in_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.py").write_text(
        "from pbr_jax.config import Config, override\n"
        "def get_config(): return override(Config(), {'retrieve.method': 'bm25'})\n"
        "def sweep(): yield {}\n"
    )
    with jax.enable_x64(True):
        assert main([command, str(tmp_path / "one.py"), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "unset JAX_ENABLE_X64" in told[0]
    assert not (tmp_path / "out").exists()
