"""Chat templates: messages to the text that a model was trained to read.

Templates are programs that come with models, and are not trusted. Jinja's sandbox keeps them from files and
from Python's internals. Their loops, calls, filters and operators are checked as they run: a template that
computes for more than a second, writes more than 10 million characters or makes a value as large is a
UserError. One operation is not cut in the middle.
"""

import contextlib
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import check_text
from pbr_jax.models.thinking import closing

DATE = "2024-07-26"
SECONDS = 1.0  # of computing for one text
CHARACTERS = 10_000_000  # of one text or value; also the largest number that a call may be given
_BITS = 10_000  # of an integer
_clock = threading.local()


class _TooMuch(Exception):
    """The template passed a limit."""


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
    template takes for today. Thinking is turned off (Qwen3); `manner` says what else is done.

    Raises UserError where the template is malformed, takes too much, refuses the messages or leaves one out.
    """
    roles = tuple(message.get("role", "") for message in messages)
    with _blamed(source, roles):
        how = manner(template, roles, tuple(specials.items()), opened, date)
        read = without_system(messages) if how.merged else messages
        text = _text(template, read, _names(specials, opened, date)) + how.closing
    check_text(text, f"{source}: what the chat template writes")
    return text


class Manner(NamedTuple):
    """What is done to a prompt because its template does not.

    `merged`: the system's text stands in front of the user's, with a blank line between, since the template
    refuses it or leaves it out. `closing`: ends the thinking that the template opens for the answer.
    """

    merged: bool
    closing: str


@functools.lru_cache(maxsize=64)
def manner(
    template: str, roles: Sequence[str], specials: Sequence[tuple[str, str]], opened: bool, date: str = DATE
) -> Manner:
    """How a template writes messages with these roles, found with messages of one word each.

    Raises jinja2.TemplateError where it leaves out a message, or opens thinking that cannot be closed.
    """
    messages = [{"role": role, "content": f"probe{place}end"} for place, role in enumerate(roles)]
    names, refusals = _names(dict(specials), opened, date), []
    for read in (messages, without_system(messages)):
        try:
            text = _text(template, read, names)
            for message in messages:
                if message["content"] not in text.casefold():
                    _refuse(f"it leaves out what the {message['role']} says")
        except jinja2.TemplateError as error:
            refusals.append(error)
            continue
        end = closing(re.split(r"(?i)probe\d+end", text)[-1]) if opened and messages else ""
        if end is None:
            _refuse("it opens thinking before the answer, and no mark is known that ends it")
        return Manner(read != messages, end)
    raise refusals[0]


def _names(specials: Mapping[str, str], opened: bool, date: str) -> dict[str, Any]:
    return {
        "tools": None, "documents": None, "enable_thinking": False, "add_generation_prompt": opened,
        "strftime_now": datetime.fromisoformat(date).strftime,  # a fixed day: the same prompt tomorrow
        **specials,
    }  # fmt: skip


@contextlib.contextmanager
def _blamed(source: str, roles: Sequence[str]) -> Iterator[None]:
    """What a template raises as a `UserError`."""
    try:
        yield
    except (_TooMuch, MemoryError) as error:
        reason = str(error) or "it takes too much memory"
        raise UserError(
            f"{source}: the chat template was stopped: {reason}; take the template as released"
        ) from error
    except Exception as error:  # whatever the template raises
        known = isinstance(error, jinja2.TemplateError)
        reason = " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
        raise UserError(
            f"{source}: the chat template cannot write messages with roles {list(roles)}: "
            f"{reason:.300}; change the roles, or give the prompt as plain text"
        ) from error


def _text(template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, Any]) -> str:
    _clock.end = time.thread_time() + SECONDS
    program = _compiled(template)
    _clock.end = time.thread_time() + SECONDS
    pieces, length = [], 0
    for piece in program.generate(messages=[dict(one) for one in messages], **names):
        pieces.append(piece)
        length += len(piece)
        _check(length)
    return "".join(pieces)


def without_system(messages: Sequence[Any]) -> list[Any]:
    """The messages with a first system message in front of the user's after it, a blank line between."""
    if [message.get("role") for message in messages[:2]] != ["system", "user"]:
        return list(messages)
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def _check(size: int = 0) -> None:
    """Raises _TooMuch after the time of this thread's text, or for a value of so many parts."""
    if size > CHARACTERS:
        raise _TooMuch(f"it writes more than {CHARACTERS} characters")
    if time.thread_time() > _clock.end:
        raise _TooMuch("it computes for more than a second")


def _check_numbers(values: Iterable[Any]) -> None:
    _check(max((value for value in values if isinstance(value, int)), default=0))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


class _Environment(ImmutableSandboxedEnvironment):
    """What templates run in: as transformers has it, with limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
            if bits > _BITS:
                raise _TooMuch(f"it makes a number of more than {_BITS} bits")
            _check()
        elif operator == "*":
            counts = [value for value in (left, right) if isinstance(value, int)]
            _check(max(counts, default=1) * max(_size(left), _size(right)))
        else:
            _check(_size(left) + _size(right))
            _check_numbers(right if isinstance(right, tuple) else ())
        return super().call_binop(context, operator, left, right)


class _Limits(NodeTransformer):
    """Loops that are checked at every step, and texts that are measured before they are joined."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "stepped")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(
            nodes.List(node.nodes, lineno=node.lineno, environment=node.environment), "concatenated"
        )


def _filtered(node: Any, name: str) -> Any:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def _stepped(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check()
        yield item


def _concatenated(parts: Sequence[Any]) -> str:
    texts = [str(part) for part in parts]
    _check(sum(map(len, texts)))
    return "".join(texts)


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose numbers and results have a limit."""

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        value = function(*args, **kwargs)
        _check(_size(value))
        return value

    return limited


class _Generation(Extension):
    """`{% generation %}`, which marks what an assistant said: it is written as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class _Dict:
    """`dict` in templates: the type itself has methods that change what they are given."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` in templates, without names by which Python finds its own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        fields = dict(*rest, **kwargs)
        for name in fields:
            _check_name(name)
        Namespace.__init__(self, fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have a field {name!r}")


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # without HTML's escapes


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters |= {"tojson": _to_json, "stepped": _stepped, "concatenated": _concatenated}
    environment.filters = {name: _limited(function) for name, function in environment.filters.items()}
    environment.globals |= {"raise_exception": _refuse, "dict": _Dict(), "namespace": _Namespace}
    tree = _Limits().visit(environment.parse(template))
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
