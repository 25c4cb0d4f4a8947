"""Ctrl-C on the command line: obeyed at the next safe place; a second one ends the process.

Python runs a signal's handler between two of its own instructions, so a compiled program ends first. Outside
`acknowledged`, as in a notebook, Ctrl-C is what it always is.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from pbr_jax.base import terminal

INTERRUPTED = 130
"""The exit code of a command that was interrupted: 128 and the number of SIGINT."""

_CHILD = "PBR_JAX_CHILD"  # in the environment of our own processes: a terminal's Ctrl-C is for their parent


class _State:
    """Of this process: whether it was interrupted, whether that waits for a piece of work, its children."""

    asked = False
    deferred = False
    children: ClassVar[set["subprocess.Popen[str]"]] = set()


@contextmanager
def acknowledged() -> Iterator[None]:
    """Inside, a first Ctrl-C is acknowledged and raises KeyboardInterrupt, a second one ends the process.

    Nothing changes where this is not the main thread, or somebody else handles or ignores the signal.
    """
    number = signal.SIGTERM if _CHILD in os.environ else signal.SIGINT
    free = (signal.default_int_handler, signal.SIG_DFL)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) not in free:
        yield
        return
    if number == signal.SIGTERM:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        signal.signal(number, handler)
        _State.asked = False


def _interrupt(*_: object) -> None:
    if _State.asked:  # whatever is written appears whole or not at all, so nothing needs to be tidied
        for child in tuple(_State.children):
            child.kill()
        os._exit(INTERRUPTED)
    _State.asked = True
    newline = "\n" * (sys.stderr is not None and sys.stderr.isatty())
    terminal.err(f"{newline}pbr-jax: stopping after this batch; again to stop now")
    if not _State.deferred:
        raise KeyboardInterrupt


def told() -> int:
    """Tells that the command was interrupted; its exit code."""
    terminal.err("pbr-jax: interrupted; the same command continues from here")
    return INTERRUPTED


# -- pieces of work ------------------------------------------------------------------------------------


@contextmanager
def deferred() -> Iterator[None]:
    """A piece of work that Ctrl-C does not cut, such as a batch and the keeping of its results.

    Raises KeyboardInterrupt before or after it, and where `check` is called inside.
    """
    if threading.current_thread() is not threading.main_thread():  # the only one in which handlers run
        yield
        return
    if _State.deferred:  # inside another piece
        yield
        return
    check()
    _State.deferred = True
    try:
        yield
    finally:
        _State.deferred = False
    check()


def check() -> None:
    """Raises KeyboardInterrupt where Ctrl-C was pressed."""
    if _State.asked:
        raise KeyboardInterrupt


# -- processes of our own ------------------------------------------------------------------------------


def run_child(arguments: Sequence[str]) -> tuple[int, str]:
    """Runs this program with other arguments; its exit code, and what it wrote to stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "pbr_jax", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        env={**os.environ, _CHILD: "1"},
    ) as child:  # fmt: skip
        _State.children.add(child)
        try:
            if _State.asked:
                child.terminate()
            _, told = child.communicate()
            return child.returncode, told
        finally:
            _State.children.discard(child)


def stop_children() -> None:
    """Asks the processes of `run_child` to end after their batch."""
    for child in tuple(_State.children):
        child.terminate()
