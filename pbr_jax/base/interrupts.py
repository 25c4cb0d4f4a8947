"""Ctrl-C on the command line: obeyed at the next safe place; a second one ends the process.

Python runs a signal's handler between two of its own instructions, so a compiled program ends first. Outside
`acknowledged`, as in a notebook, Ctrl-C is what it always is.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pbr_jax.base import terminal

INTERRUPTED = 130
"""The exit code of a command that was interrupted: 128 and the number of SIGINT."""


class _State:
    """Of this process: whether it was interrupted, and whether that waits for a piece of work."""

    asked = False
    deferred = False


@contextmanager
def acknowledged() -> Iterator[None]:
    """Inside, a first Ctrl-C is acknowledged and raises KeyboardInterrupt, a second one ends the process.

    Nothing changes where this is not the main thread, or somebody else handles or ignores the signal.
    """
    free = (signal.default_int_handler, signal.SIG_DFL)
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) not in free:
        yield
        return
    handler = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        _State.asked = False


def _interrupt(*_: object) -> None:
    if _State.asked:  # whatever is written appears whole or not at all, so nothing needs to be tidied
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
