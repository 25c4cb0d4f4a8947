"""What the environment does: one line that names the file and says what to do; bugs are not hidden."""

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from pbr_jax.base import system_errors
from pbr_jax.base.files import cache_folder, write_text
from pbr_jax.base.types import UserError
from pbr_jax.cache import artefacts
from pbr_jax.cli import main as cli
from pbr_jax.corpus import store

NUMBERS = (
    "ENOSPC EDQUOT EFBIG EACCES EPERM EROFS ENOENT ENOTDIR EISDIR ELOOP EEXIST ENAMETOOLONG EIO ESTALE "
    "EMFILE ENFILE ETIMEDOUT ENODEV ENXIO ENOLCK ENOTSUP EOPNOTSUPP ENOSYS EBUSY ENOMEM ENOTCONN "
    "EHOSTDOWN EREMOTEIO"
)
FULL = Path("/dev/full")  # takes nothing, as a full disk


def write_file(path: Path) -> None:
    with path.open("w") as file:
        file.write("x" * 100_000)


def write_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(10_000))


@pytest.mark.parametrize("name", NUMBERS.split())
def test_every_error_of_the_system_is_one_line_that_names_the_file(name: str):
    number = getattr(errno, name)
    told = system_errors.line(OSError(number, os.strerror(number), "/data/x.json"))
    assert told is not None
    assert told.startswith("cannot ")
    assert f" /data/x.json: {os.strerror(number)}; " in told
    assert "\n" not in told


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("write", [write_file, write_array], ids=lambda write: write.__name__)
def test_a_full_disk_names_the_file_whoever_writes(write: Callable[[Path], None], tmp_path: Path):
    with (
        pytest.raises(OSError, match="No space left") as caught,
        system_errors.located(tmp_path / "vectors.npy"),
    ):
        write(FULL)
    told = system_errors.line(caught.value)
    assert told is not None
    assert told.startswith("cannot write ")
    assert "vectors.npy: No space left on device; free some space" in told


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_process_that_has_gone_is_told_in_one_line(kind: type[Exception]):
    told = system_errors.line(kind("UNKNOWN: Gloo AllGather failed: [pair.cc:547] Connection closed by peer"))
    assert told is not None
    assert told.startswith("another process of this run has ended (UNKNOWN: Gloo AllGather failed")
    assert system_errors.line(kind("no gloomy weather")) is None


LIMITED = """
import resource, sys, numpy, sqlite3
from pathlib import Path
from safetensors.numpy import save_file
from pbr_jax.base import system_errors as faults
from pbr_jax.train.checkpoints import Checkpoints
from pbr_jax.train.steps import TrainState
def sqlite(path):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE t(x)")
    database.execute("INSERT INTO t VALUES (?)", (b"x" * 10**6,))
    database.commit()
def weights(path):
    save_file({"a": numpy.zeros(10**6)}, path)
def array(path):
    numpy.save(path, numpy.zeros(10**6))
def checkpoint(path):
    value = numpy.random.default_rng(0).random(10**6).astype("float32")
    with Checkpoints(path) as checkpoints:
        checkpoints.save(1, TrainState(numpy.zeros((), "int32"), {"a": value}, {}), {}, 1.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for write in (sqlite, array, weights, checkpoint):
    try:
        with faults.located(Path("HERE")):
            write(Path(sys.argv[1]) / f"{write.__name__}.npy")
    except Exception as error:
        print(write.__name__, faults.line(error))
"""


def test_a_limit_that_libraries_meet_in_words_of_their_own_is_known(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["sqlite", "array", "weights", "checkpoint"], done.stderr
    assert all(" cannot write HERE: " in line and "free some space" in line for line in lines)


def test_a_stage_on_a_full_disk_names_its_folder():
    def make(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=f"{cache_folder()}/rank/.*partial"):
        artefacts.obtain("rank", {}, make)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_an_artefact_that_cannot_be_read_now_is_not_made_anew(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    made = artefacts.obtain("rank", {}, lambda folder: write_text(folder / "x", "1"))
    real = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.name == "stage.json":
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(OSError, match=r"stage\.json"):
        artefacts.obtain("rank", {}, lambda folder: pytest.fail("made anew"))
    monkeypatch.undo()
    assert (made.path / "x").read_text() == "1"


def test_a_damaged_store_is_named(tmp_path: Path):
    path = tmp_path / "store.sqlite"
    store.build(path, [])
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(OSError, match=r"malformed.*store\.sqlite"):
        store.Store(path).users  # noqa: B018


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            MemoryError("Unable to allocate 7.45 GiB for an array"),
            ["out of memory", "7.45 GiB", "llm.batch_size"],
        ),
        (MemoryError(), ["out of memory", "lower llm.batch_size"]),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
            ["the device is"],
        ),
        (RuntimeError("can't start new thread"), ["ulimit -u"]),
        (OSError("10 requested and 2 written"), ["cannot write a file"]),
        (sqlite3.OperationalError("no such table: t"), None),
        (ValueError("a bug"), None),
        (KeyError("x"), None),
    ],
)
def test_memory_and_threads_are_the_environments_and_bugs_are_ours(error: Exception, words: list[str] | None):
    told = system_errors.line(error)
    assert told is None if words is None else all(word in str(told) for word in words)


def test_a_user_error_is_told_as_it_is():
    with pytest.raises(UserError, match="Permission denied is quoted"), system_errors.located(Path("x")):
        raise UserError("Permission denied is quoted")


def test_a_traceback_is_shown_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    assert cli.main(["report", "nowhere"]) == 2
    assert "Traceback" not in capfd.readouterr().err
    monkeypatch.setenv("PBR_JAX_TRACEBACK", "1")
    assert cli.main(["report", "nowhere"]) == 2
    told = capfd.readouterr().err
    assert "Traceback" in told
    assert told.splitlines()[-1].startswith("pbr-jax: error: ")


@pytest.mark.parametrize("place", ["out", "config", "root", "report"])
def test_a_name_that_no_file_system_takes_is_one_line(
    place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    long = "n" * 256
    command = {
        "out": ["run", "bm25", "--benchmark.root", str(tmp_path), "--out", str(tmp_path / long)],
        "config": ["run", long, "--out", str(tmp_path / "out")],
        "root": ["run", "bm25", "--benchmark.root", long, "--out", str(tmp_path / "out")],
        "report": ["report", long],
    }[place]
    assert cli.main(command) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert place == "out" or "File name too long" in error


def test_the_longest_name_that_a_file_system_takes_can_be_written(tmp_path: Path):
    path = tmp_path / ("é" * 127)
    write_text(path, "text")
    assert path.read_text() == "text"


def test_an_error_whose_class_says_what_happened_keeps_it(tmp_path: Path):
    """A stage that stumbles over what an earlier attempt left begins anew only for some classes."""
    with pytest.raises(FileNotFoundError, match="part"), system_errors.located(tmp_path):
        raise FileNotFoundError("part")
    with pytest.raises(OSError, match="odd") as caught, system_errors.located(tmp_path):
        raise OSError("odd")
    assert caught.value.errno == errno.EIO
