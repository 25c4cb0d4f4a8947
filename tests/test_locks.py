"""Locks between processes, and file systems that have none."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base import locks
from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import UserError
from pbr_jax.cache import artefacts
from pbr_jax.corpus.vectors import VectorStore
from pbr_jax.experiment.run_folder import RunFolder
from pbr_jax.llm.answers_file import Answers


@pytest.fixture(autouse=True)
def looked_at_anew() -> Iterator[None]:
    locks.require_locks.cache_clear()
    yield
    locks.require_locks.cache_clear()


class Encoder:
    dim = 2

    def vectors_key(self, role):
        return "constant"

    def encode(self, texts, *, role="document"):
        return np.zeros((len(texts), 2), np.float32)


def answers() -> None:
    Answers(cache_folder() / "llm.sqlite").add("text", {"0" * 64: "a"})


def run_folder() -> None:
    with RunFolder(cache_folder() / "out", {}).alone():
        pass


USERS: dict[str, Callable[[], object]] = {
    "artefact": lambda: artefacts.obtain("made_nowhere_else", {}, lambda folder: None),
    "answers": answers,
    "run folder": run_folder,
    "vectors": lambda: VectorStore(Encoder()).places(["a"]),
}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO])
@pytest.mark.parametrize("kind", ["flock", "lockf"])
@pytest.mark.parametrize("user", USERS)
def test_a_file_system_without_locks_is_one_line(
    user: str, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    """The system call alone is replaced: no file system that is mounted here refuses it."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, kind, refused)
    with pytest.raises(UserError, match="cannot lock files") as caught:
        USERS[user]()
    assert os.strerror(number) in str(caught.value)
    assert str(cache_folder()) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("user", USERS)
def test_a_file_system_with_locks_is_used(user: str):
    USERS[user]()


HOLDER = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_waited_for_and_freed_by_a_kill(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "x.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        def waited() -> bool:
            return "x is made elsewhere" in capfd.readouterr().err

        real = locks.terminal.err
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks.terminal, "err", lambda text: (real(text), holder.kill()))
            with locks.locked(path, "x is made elsewhere"):
                assert waited()
    assert holder.returncode == -9
