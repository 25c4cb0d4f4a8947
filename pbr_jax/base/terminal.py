"""Text on its way to a terminal or a pipe: every `print` of the package is here.

Users, models and files write what they like, and a console may lack the characters: control characters are
shown as escapes, and so are characters that an encoding lacks.
"""

import contextlib
import io
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import absl.logging
from tqdm import tqdm

# C0 but tab and line feed, C1, line separators, bidirectional controls, halves of surrogate pairs.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def visible(text: object) -> str:
    """The text with control characters as escapes (`\\x1b`); tabs and line feeds stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def out(text: object) -> None:
    """Writes a result to stdout. Raises OSError that names it where it takes no more, as on a full disk."""
    try:
        print(visible(text), flush=True)
    except OSError as error:
        sys.stdout = None  # else the interpreter tries again, and complains, when it ends
        error.filename = "standard output"
        raise


class Paragraph(NamedTuple):
    """A text of one or several lines, the columns that it is set in, and its style (rich's) on a terminal."""

    text: str
    indent: int = 0
    style: str = ""


def plain(paragraphs: Iterable[Paragraph]) -> str:
    """Paragraphs as text, control characters as escapes; their lines stay as long as they are."""
    return "\n".join(textwrap.indent(visible(one.text), " " * one.indent) for one in paragraphs)


def page(paragraphs: Iterable[Paragraph]) -> None:
    """Writes paragraphs to stdout: wrapped at a terminal's width and styled there, else as `plain` does."""
    if sys.stdout is None or not sys.stdout.isatty():
        return out(plain(paragraphs))
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    for one in paragraphs:
        console.print(Padding(Text(visible(one.text), one.style), (0, 0, 0, one.indent)))


def err(text: object) -> None:
    """Writes a message to stderr, at once. A reader of stderr that left stops no work."""
    with contextlib.suppress(OSError, ValueError):
        print(visible(text), file=sys.stderr, flush=True)


def bar(
    items: Iterable[Any] | None = None,
    *,
    desc: str | None = None,
    total: int | None = None,
    unit: str = "it",
    initial: int = 0,
    show: bool | None = None,
) -> "tqdm[Any]":
    """A progress bar on stderr, by default where that is a terminal (`show` None)."""
    disable = True if sys.stderr is None or show is False else (None if show is None else False)
    return _Bar(
        items, desc=desc and visible(desc), total=total, unit=unit, initial=initial, disable=disable,
        leave=False,
    )  # fmt: skip


class _Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument]
    """A bar that `doing` finds while it is shown."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not self.disable:
            _SHOWN.append(self)

    def update(self, n: int | float | None = 1) -> Any:
        self.postfix = None  # it was about the step that ends here
        return super().update(n)

    def close(self) -> None:
        if self in _SHOWN:
            _SHOWN.remove(self)
        super().close()


_SHOWN: list[_Bar] = []
_SAID: set[str] = set()


def doing(what: str, *, slow: bool = False) -> None:
    """Shows on the innermost bar what goes on within one of its steps, at most as often as bars are drawn.

    `slow`: it takes seconds from now on. So it is shown at once, where there is no bar as a line of its own,
    the first time in a process.
    """
    if _SHOWN:
        bar = _SHOWN[-1]
        bar.postfix = what
        now = time.time()
        if slow or now - bar.last_print_t >= bar.mininterval:
            bar.refresh()
            bar.last_print_t = now
    elif slow and what not in _SAID:
        _SAID.add(what)
        err(f"{what} ...")


def prepare() -> None:
    """Makes output safe: no character is refused, no file takes the number of a closed stream, and libraries
    log nothing."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    absl.logging.set_verbosity(absl.logging.FATAL)  # Orbax logs tracebacks of what it then raises
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
