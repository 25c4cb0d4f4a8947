"""Chat templates: messages to the text that a model was trained to read.

Templates are programs, applied by `template_worker` in a process of its own, which is started at the first
text and stays. One that computes for more than a second, writes more than 10 MB or takes too much
memory is a UserError.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import check_text

_PROGRAM = Path(__file__).with_name("template_worker.py")
DATE = "2024-07-26"
_TOGETHER = 64  # prompts of one request: each request wakes a process
_PATIENCE = 10.0  # seconds, where the system cannot stop the process after so much computing


class _Stopped(Exception):
    """The template takes too much; says of what."""


def render(
    template: str,
    messages: Sequence[Mapping[str, str]],
    specials: Mapping[str, str],
    *,
    source: str = "",
    opened: bool = True,
    date: str = DATE,
) -> str:
    """A chat template applied to messages, with the answer's turn opened unless not `opened`.

    `specials`: texts of special tokens by their names in templates (`bos_token`); `date`: the day that the
    template takes for today. Thinking is turned off (Qwen3). Where a template refuses a system message
    (Gemma, older Mistrals), it is put in front of the first user's, with a blank line between.

    Raises UserError where the template is malformed, takes too much, or refuses the messages.
    """
    return render_each(template, [messages], specials, source=source, opened=opened, date=date)[0]


def render_each(
    template: str,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    specials: Mapping[str, str],
    *,
    source: str = "",
    opened: bool = True,
    date: str = DATE,
) -> list[str]:
    """`render` of each of several prompts."""
    names = {
        "tools": None, "documents": None, "enable_thinking": False, "add_generation_prompt": opened,
        **specials,
    }  # fmt: skip

    def write(some: Sequence[Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
        texts = [[dict(message) for message in messages] for messages in some]
        request = {"template": template, "names": names, "date": date, "prompts": texts}
        return _worker(os.getpid()).ask(request, len(texts)) if texts else []

    rendered: list[str] = []
    for start in range(0, len(prompts), _TOGETHER):
        some = prompts[start : start + _TOGETHER]
        try:
            answers = write(some)
            refused = [i for i, answer in enumerate(answers) if "refused" in answer and _begins(some[i])]
            again = write([_without_system(some[i]) for i in refused])
        except _Stopped as error:
            raise _too_much(source, error) from error
        for i, answer in zip(refused, again, strict=True):
            answers[i] = answers[i] if "refused" in answer else answer
        rendered += map(functools.partial(_text, source), some, answers)
    return rendered


def _text(source: str, messages: Sequence[Mapping[str, str]], answer: Mapping[str, str]) -> str:
    """The text of an answer. Raises UserError where there is none."""
    if "stopped" in answer:
        raise _too_much(source, answer["stopped"])
    if "refused" in answer:
        raise UserError(
            f"{source}: the chat template cannot write messages with roles {_roles(messages)}: "
            f"{' '.join(answer['refused'].split()):.300}; change the roles, or give the prompt as plain text"
        )
    check_text(answer["text"], f"{source}: what the chat template writes")
    return answer["text"]


def _too_much(source: str, why: object) -> UserError:
    return UserError(f"{source}: the chat template was stopped: {why}; take the template as released")


def _roles(messages: Sequence[Mapping[str, str]]) -> list[str | None]:
    return [message.get("role") for message in messages]


def _begins(messages: Sequence[Mapping[str, str]]) -> bool:
    """Whether a system message stands in front of a user's."""
    return _roles(messages)[:2] == ["system", "user"]


def _without_system(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    system, user, *rest = messages
    return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]


@functools.lru_cache(maxsize=1)
def _worker(process: int) -> "_Worker":
    """The one of this process: one that was forked must not speak into its parent's pipes."""
    worker = _Worker()
    atexit.register(worker.close)
    return worker


class _Worker:
    """The program that applies templates; it is started anew when it had to be stopped."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, Any], count: int) -> list[dict[str, str]]:
        """What it answers to each of the so many prompts of a request. Raises _Stopped where it ended."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            process = self._process or _start()
            self._process = None  # an interrupt on the way would leave an answer to an earlier line in it
            answers = _asked(process, line, count)
            if not all(answers):
                raise _Stopped(_why(_stop(process)))
            self._process = process
        return [*map(json.loads, answers)]

    def close(self) -> None:
        """Ends the process."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._process is not None:
                _stop(self._process)
                self._process = None


def _start() -> "subprocess.Popen[bytes]":
    # -P: the folder of the program is no place to import from.
    return subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _asked(process: "subprocess.Popen[bytes]", line: bytes, count: int) -> list[bytes]:
    """The so many answers to a line; nothing where the process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = None
    if not hasattr(signal, "setitimer"):
        timer = threading.Timer(_PATIENCE * count, process.kill)
        timer.start()
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return [process.stdout.readline() for _ in range(count)]
    except BrokenPipeError:
        return [b""]
    except BaseException:
        process.kill()
        _stop(process)
        raise
    finally:
        if timer is not None:
            timer.cancel()


def _stop(process: "subprocess.Popen[bytes]") -> int:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _why(code: int) -> str:
    if code == -getattr(signal, "SIGPROF", 0):
        return "it computes for more than a second"
    return f"the process that applies it ended with code {code}, for want of memory or time"
