"""A program of its own that applies chat templates; `templates` starts it and asks it, a line of JSON a
request, and it answers each prompt of a request with a line.

Templates come with models and are not trusted. The sandbox of transformers keeps them from files and from
Python's internals; a process of its own limits their time and memory.
"""

import contextlib
import json
import os
import signal
import sys
from datetime import datetime
from typing import Any

# One thread: numpy, which transformers imports, would reserve more for many than a template may have.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import jinja2

# Its public functions render as a whole, with no end to how much, and know no day but today.
from transformers.utils.chat_template_utils import _compile_jinja_template

SECONDS = 1.0  # of computing for one text
CHARACTERS = 10_000_000  # of one text
MEMORY = 512 << 20  # bytes


class _TooMuch(Exception):
    """A limit that the template passed."""


def _text(template: str, names: dict[str, Any], day: str) -> str:
    pieces, length = [], 0
    now = datetime.fromisoformat(day).strftime  # a fixed day: the same prompt tomorrow
    for piece in _compile_jinja_template(template).generate(**names, strftime_now=now):
        pieces.append(piece)
        length += len(piece)
        if length > CHARACTERS:
            raise _TooMuch(f"it writes more than {CHARACTERS} characters")
    return "".join(pieces)


def _answer(request: dict[str, Any], messages: list[dict[str, str]]) -> dict[str, str]:
    try:
        names = {**request["names"], "messages": messages}
        return {"text": _text(request["template"], names, request["date"])}
    except MemoryError:
        return {"stopped": f"it takes more than {MEMORY >> 20} MB of memory"}
    except _TooMuch as error:
        return {"stopped": str(error)}
    except jinja2.TemplateError as error:
        return {"refused": str(error)}
    except Exception as error:  # whatever the template raises
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
        for messages in request["prompts"]:
            _limit_time(SECONDS)
            answer = json.dumps(_answer(request, messages)).encode()
            _limit_time(0)
            sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
