"""A memory system in a process of its own: started, bounded in time, killed, and resumed.

The protocol has four calls, `add`, `search`, `delete` and `files`. `host` runs an adapter, a file with the
class `Memory`, in the system's own environment and answers them.
"""

import contextlib
import functools
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.base.files import open_private, parse_json, private_folder
from pbr_jax.base.types import Document, UserError

HOST = Path(__file__).with_name("host.py")
_PIPE = subprocess.PIPE
_MOST = 64 << 20  # bytes of a reply
_ENDING = 10  # seconds in which a system may end by itself
_LOG = "log.txt"
_PASSED = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
_VERSIONS = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps([sys.version, sorted({(d.metadata['Name'], d.version) for d in m.distributions()})]))"
)


class Memory(NamedTuple):
    """A text that a system found, the ids of the documents from which it was made, and its score."""

    text: str
    sources: tuple[str, ...]
    score: float


class Process(contextlib.AbstractContextManager["Process"]):
    """A memory system that is reached through an adapter.

    Args:
      adapter: a Python file with the class `Memory`.
      folder: the system's files. What an earlier process added there is still known.
      python: the Python of the system's own environment. "": this one.
      settings: what the adapter is given, as JSON.
      timeout: seconds that a call may take. A process that takes longer, or ends, is started again.
      restarts: how often that may happen in one call.

    Raises UserError, here and in all calls, if the adapter is missing, fails, or gives what is no memory.
    """

    def __init__(
        self,
        adapter: Path,
        folder: Path,
        *,
        python: str = "",
        settings: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
        restarts: int = 2,
    ) -> None:
        self.counts = defaultdict[str, float](int)
        self._adapter, self._folder = adapter.absolute(), folder.absolute()
        self._python, self._settings = python or sys.executable, dict(settings or {})
        self._timeout, self._restarts = timeout, restarts
        self._running: subprocess.Popen[bytes] | None = None
        self._replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._n, self._lock = 0, threading.Lock()
        private_folder(self._folder)

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, user: str, documents: Sequence[Document]) -> None:
        """Adds documents of a user, oldest first. The same ones of the same user are added once."""
        told = [
            {"id": one.id, "text": one.text, "time": _iso(one.time), "fields": dict(one.fields)}
            for one in documents
        ]
        key = hashlib.sha256(json.dumps([user, told]).encode()).hexdigest()
        self._call("add", key=key, user=user, documents=told)
        self.counts["documents"] += len(told)

    def search(self, user: str, query: str, k: int, time: float | None = None) -> list[Memory]:
        """The best `k` memories of a user for a query that is asked at a time, best first."""
        found = self._call("search", user=user, query=query, k=k, time=_iso(time))
        if not isinstance(found, list):
            raise self._wrong(f"search gave {type(found).__name__}, want a list")
        return [self._memory(one, rank) for rank, one in enumerate(found[:k])]

    def delete(self, user: str, ids: Sequence[str] | None = None) -> None:
        """Deletes what was made from some documents of a user, or everything of the user."""
        self._call("delete", user=user, ids=None if ids is None else [*ids])

    def files(self) -> list[Path]:
        """All files in which the system may hold texts."""
        self._call("close")
        self.close()  # what it still holds in memory is then on disk
        return [Path(path) for path in self._call("files")]

    def close(self) -> None:
        """Ends the process. A later call starts it again."""
        if self._running is not None:
            with contextlib.suppress(OSError):
                self._running.stdin.close()  # type: ignore[union-attr]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running.wait(_ENDING)
            self._kill()

    def _memory(self, found: Any, rank: int) -> Memory:
        text, sources = (
            (found.get(name) for name in ("text", "sources")) if isinstance(found, dict) else ("", ())
        )
        if not isinstance(text, str) or not text.strip():
            raise self._wrong(f"search gave {found!s:.80}, want objects with a text")
        if not isinstance(sources, list) or not sources or not all(isinstance(s, str) for s in sources):
            raise self._wrong(
                f"search gave a text with the sources {sources!r:.80}, want the ids of the documents from "
                "which it was made; a text that comes from nowhere may be an error message"
            )
        score = found.get("score", -rank)
        if type(score) not in (int, float) or not abs(score) < float("inf"):
            raise self._wrong(f"search gave the score {score!r:.40}, want a finite number")
        return Memory(text, tuple(sources), float(score))

    def _wrong(self, what: str) -> UserError:
        return UserError(
            f"{self._adapter}: {what}; mend the adapter (its output is in {self._folder / _LOG})"
        )

    # -- the process -----------------------------------------------------------------------------------

    def _call(self, call: str, **request: Any) -> Any:
        start = time.perf_counter()
        try:
            with self._lock:
                return self._answered(call, request)
        finally:
            self.counts[f"{call}_calls"] += 1
            self.counts[f"{call}_seconds"] += time.perf_counter() - start

    def _answered(self, call: str, request: Mapping[str, Any]) -> Any:
        why = ""
        for _ in range(self._restarts + 1):
            try:
                if self._running is None:
                    self._start()
                    self._exchange("open", {"settings": self._settings})
                return self._exchange(call, request)
            except _Gone as gone:
                why = str(gone)
                self._kill()
                self.counts["restarts"] += 1
        raise self._wrong(f"{call} failed, as the process {why}, {self._restarts + 1} times")

    def _exchange(self, call: str, request: Mapping[str, Any]) -> Any:
        assert self._running is not None
        assert self._running.stdin is not None
        self._n += 1
        try:
            self._running.stdin.write(json.dumps({"n": self._n, "call": call, **request}).encode() + b"\n")
            self._running.stdin.flush()
        except OSError:
            raise _Gone(self._ended()) from None
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                line = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise _Gone(f"did not answer within {self._timeout:g} s") from None
            if not line.endswith(b"\n"):
                raise _Gone(self._ended() if len(line) < _MOST else "gave a reply that is too long")
            try:
                reply = parse_json(line)
            except ValueError:
                raise _Gone("gave a reply that is no JSON") from None
            if reply["n"] == self._n:
                break
        if "error" in reply:
            if call == "open":
                self._kill()
            raise self._wrong(f"{call} failed with {reply['error']:.500}")
        return reply["value"]

    def _start(self) -> None:
        if not self._adapter.is_file():
            raise UserError(f"{self._adapter}: no such adapter; give a Python file with the class Memory")
        home = self._folder / "home"
        private_folder(home)
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        options: dict[str, Any] = {"cwd": home, "umask": 0o077, "start_new_session": True}
        options["env"] = {**_OFFLINE, **passed, "HOME": str(home)}
        with open_private(self._folder / _LOG) as log:
            command = [self._python, "-I", "-B", str(HOST), str(self._adapter), str(self._folder)]
            try:
                started: Any = subprocess.Popen(command, stdin=_PIPE, stdout=_PIPE, stderr=log, **options)
            except OSError as error:
                raise UserError(
                    f"{self._python} cannot be started ({error.strerror}); give the Python of the system's "
                    "own environment"
                ) from error
        self._running, self._replies = started, queue.SimpleQueue()
        reading = functools.partial(_read, started.stdout, self._replies)
        threading.Thread(target=reading, daemon=True).start()

    def _ended(self) -> str:
        assert self._running is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"ended with exit code {self._running.wait(1)}"
        return "closed its output"

    def _kill(self) -> None:
        """Kills the process and those that it started."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            with contextlib.suppress(OSError):  # what was not sent is lost
                self._running.stdin.close()  # type: ignore[union-attr]
            self._running = None


class _Gone(Exception):
    """The process ended or does not answer, in words."""


def _read(lines: Any, replies: "queue.SimpleQueue[bytes]") -> None:
    """Passes on each line, and at the end of all an empty one."""
    with lines:
        while True:
            line = lines.readline(_MOST)
            replies.put(line)
            if not line.endswith(b"\n"):
                return


def _iso(time: float | None) -> str | None:
    """A moment as ISO 8601 in UTC; None where there is none, or it is the present."""
    try:
        return None if time is None else datetime.fromtimestamp(time, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


@functools.lru_cache
def versions(python: str) -> str:
    """A digest of the Python and of all packages in an environment; UserError where it cannot be run."""
    try:
        command = [python or sys.executable, "-I", "-c", _VERSIONS]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"{python} cannot be run ({error}); give the Python of the system's own environment"
        ) from error
    return hashlib.sha256(done.stdout).hexdigest()[:16]
