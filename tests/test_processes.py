"""Several processes under jax.distributed are refused at once, instead of waiting for each other."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
