"""Claims of a sweep's runs, so that each run is made by one process of however many, on however many hosts.

A claim is a file that one process creates and all others find there: `NAME.0`, then `NAME.1` once the process
of `NAME.0` has ended or died. None is deleted, so of two processes that find one dead only one follows it. A
process touches its claims while it lives. No lock is taken: many clusters' file systems have none between
hosts.
"""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.base.files import open_private, parse_json, private_folder, write_text

_LONGEST_BEAT = 15.0  # seconds between two touches: twenty in the time after which a claim is dead


@dataclass(frozen=True)
class _Claim:
    """One claim as it was found; `age`: seconds since it was last touched, by the file server's clock."""

    number: int
    record: Mapping[str, Any]
    touched: float
    age: float


class Claims:
    """The claims in a folder; a context, in which those of this process are touched, and end with it.

    Args:
      stale_after: seconds after which an untouched claim is dead. On the same host a claim of a process that
        is gone is dead at once.
    """

    def __init__(self, folder: Path, stale_after: float) -> None:
        private_folder(folder)
        self._folder, self._stale_after = folder, stale_after
        self._began = self._now()
        self._held: dict[str, Path] = {}
        self._left = threading.Event()
        self._beat = threading.Thread(target=self._touch, name="pbr_jax.sweeps.claims", daemon=True)

    def __enter__(self) -> "Claims":
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._beat.join()
        for name in tuple(self._held):
            self.release(name)

    def take(self, name: str) -> bool:
        """Claims a run; False where a living process has it."""
        last = self._last(name)
        if last is not None and self._lives(last):
            return False
        path = self._folder / f"{name}.{0 if last is None else last.number + 1}"
        try:
            with open_private(path, "x") as file:
                file.write(json.dumps({**_process(), "ended": False}))
        except FileExistsError:
            return False
        self._held[name] = path
        return True

    def release(self, name: str, failure: str = "") -> None:
        """Ends a claim of this process. `failure`: why the run could not be made."""
        path = self._held.pop(name)
        write_text(path, json.dumps({**_process(), "ended": True, "failure": failure}))

    def failure(self, name: str) -> str:
        """Why another process could not make a run since this object was made; "" where none tried."""
        last = self._last(name)
        tried = last is not None and last.record.get("ended") and last.touched >= self._began
        return str(last.record.get("failure") or "") if last is not None and tried else ""

    def holder(self, name: str) -> str:
        """The process that holds a claim, in words."""
        last = self._last(name)
        record = {} if last is None else last.record
        return f"process {record.get('process', '?')} on {record.get('host', '?')}"

    def _last(self, name: str) -> _Claim | None:
        numbers = [
            int(path.suffix[1:]) for path in self._folder.glob(f"{name}.*") if path.suffix[1:].isdigit()
        ]
        if not numbers:
            return None
        path = self._folder / f"{name}.{max(numbers)}"
        try:
            record = parse_json(path.read_bytes())
        except ValueError:  # it has been created, and not yet written
            record = {}
        touched = path.stat().st_mtime
        return _Claim(
            max(numbers), record if isinstance(record, dict) else {}, touched, self._now() - touched
        )

    def _lives(self, claim: _Claim) -> bool:
        if claim.record.get("ended") or claim.age > self._stale_after:
            return False
        own = _process()
        same = all(claim.record.get(name) == own[name] for name in ("host", "processes"))
        return not same or _runs(claim.record["process"])

    def _now(self) -> float:
        """The time by the clock of the file server, which dates the files of all hosts."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            return os.fstat(file.fileno()).st_mtime

    def _touch(self) -> None:
        while not self._left.wait(min(_LONGEST_BEAT, self._stale_after / 8)):
            for path in tuple(self._held.values()):
                with suppress(OSError):  # a file server that is away for a while
                    os.utime(path)


def _process() -> dict[str, Any]:
    """What this process is known by; `processes` is the container in whose numbering its number counts."""
    space = Path("/proc/self/ns/pid")
    numbering = os.readlink(space) if space.is_symlink() else ""
    return {"host": socket.gethostname(), "processes": numbering, "process": os.getpid()}


def _runs(process: int) -> bool:
    """Whether a process of this host runs. On Windows, where asking would end it, one is taken to."""
    if os.name == "nt":
        return True
    with suppress(OSError):  # Linux: one that was killed stays, as a zombie, until its parent asks for it
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True
