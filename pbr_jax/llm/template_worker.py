"""A program of its own that applies chat templates; `templates` starts it and asks it, a line of JSON each.

A template comes with a model, from anybody. Jinja's sandbox keeps it from files and from Python's insides;
in a process of its own it can also be stopped, whatever it computes, and gets no more memory than it may.
"""

import contextlib
import functools
import json
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 1.0  # of computing for one text
CHARACTERS = 10_000_000  # of one text
MEMORY = 512 << 20  # bytes


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks answers for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TooMuch(Exception):
    """A limit that the template passed."""


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    """With the functions and settings that Hugging Face gives templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


def _text(template: str, names: dict[str, Any], day: str) -> str:
    pieces, length = [], 0
    now = datetime.fromisoformat(day).strftime  # a fixed day: the same prompt tomorrow
    for piece in _compiled(template).generate(**names, strftime_now=now):
        pieces.append(piece)
        length += len(piece)
        if length > CHARACTERS:
            raise _TooMuch(f"it writes more than {CHARACTERS} characters")
    return "".join(pieces)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": _text(request["template"], request["names"], request["date"])}
    except MemoryError:
        return {"stopped": f"it takes more than {MEMORY >> 20} MB of memory"}
    except _TooMuch as error:
        return {"stopped": str(error)}
    except jinja2.TemplateError as error:
        return {"refused": str(error)}
    except Exception as error:  # whatever a program of somebody else's does
        return {"refused": f"{type(error).__name__}: {error}"}


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def _limit_time(seconds: float) -> None:
    """Ends the process after so much computing, in whatever it is; 0: no more."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answers every line until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for who asks
    _limit_memory()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_time(SECONDS)
        answer = json.dumps(_answer(request)).encode()
        _limit_time(0)
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
