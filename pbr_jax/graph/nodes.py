"""The graph of a run: nodes that compute values. The key of a node covers all of its inputs.

The only inputs of a node are its options and the values of the nodes that it needs. Its key is the hash of
these and of its code (`code`), so no value depends on anything outside its key. A `Stage` writes its result
to disk, and a `Value` keeps it in memory. Values are computed when they are first read. Keys alone tell which
results exist.
"""

import abc
import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from pbr_jax.base import processes, terminal
from pbr_jax.base.types import UserError
from pbr_jax.cache import sources
from pbr_jax.cache.artefacts import (
    Artefact,
    Log,
    digest,
    is_whole,
    made_by,
    obtain,
    place,
    seconds_of,
    temporary_folder,
)
from pbr_jax.cache.code import Code, described
from pbr_jax.options import Learner, Method, Options, key_of

_log: ContextVar[Log | None] = ContextVar("log", default=None)
_told: set[str] = set()  # reasons why results are not kept

Together = Callable[[Callable[..., None], Path, tuple[Any, ...], Mapping[str, Any]], None]
"""(make, folder, options, values of needs): the part of each of several processes in a stage (`hosts`)."""


@contextlib.contextmanager
def logging_to(log: Log | None) -> Iterator[None]:
    """Stages that are computed or read inside the `with` block report to this log."""
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)


def tell(label: str, note: str) -> None:
    """Prints a note on a stage's result to stderr, and adds it to the log."""
    if not processes.leads():  # of several processes one tells
        return
    terminal.err(f"{label}: note: {note}")
    log = _log.get()
    if log is not None:
        log({"event": "note", "stage": label, "note": note})


_F = TypeVar("_F", bound=Callable[..., Any])


def builds_nodes(function: _F) -> _F:
    """Marks a function that only builds or checks nodes. Its code, and what it alone imports, is in no key:
    the nodes that it builds have keys of their own."""
    return function


class Node(abc.ABC):
    """A node of the graph, which computes a value.

    Args:
      name: the name of the value. Nodes with equal names and keys have the same value.
      needs: the nodes whose values are the inputs, by argument name.
      check: is called before any computation, and raises UserError if the node would fail.
    """

    def __init__(self, name: str, needs: Mapping[str, "Node"], check: Callable[[], object] | None) -> None:
        self.name, self.needs, self._check = name, dict(needs), check

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the value depends on, as JSON, with needs as their `known_by`."""
        _settle(self, "known_by")
        needs = {name: node.known_by for name, node in self.needs.items()}
        return {
            "options": key_of(self._options_of()),
            "code": [code.hash for code in self._codes],
            "needs": needs,
        }

    @cached_property
    def key(self) -> str:
        """The hash of everything that the value depends on."""
        return digest({"stage": self.name, **self.identity})

    @cached_property
    def known_by(self) -> str:
        """The text that represents this node in the keys of nodes that need it."""
        return self.key

    @cached_property
    def _codes(self) -> list[Code]:
        return [described(one) for one in self._code()]

    @property
    def unkept(self) -> str:
        """Why what it computes is not kept for other processes (`cache.code`). Empty: it is kept."""
        return next((why for node in walk(self) if (why := node._unkept)), "")

    @cached_property
    def _unkept(self) -> str:
        return next((code.unkept for code in self._codes if code.unkept), "")

    @cached_property
    def value(self) -> Any:
        """The value, which is computed once."""
        return self._compute()

    @abc.abstractmethod
    def _compute(self) -> Any: ...

    @abc.abstractmethod
    def _options_of(self) -> Any:
        """What it is given beside its needs."""

    @abc.abstractmethod
    def _code(self) -> list[Any]:
        """The functions and classes that compute."""

    def _missing(self) -> Iterable["Node"]:
        """The needs whose values it computes with, if it must compute."""
        return self.needs.values()

    def check(self) -> None:
        """Checks the inputs of the key (models, files), and all else that can be checked before computing."""
        _ = self.key
        if self._check is not None:
            self._check()

    def _values(self) -> dict[str, Any]:
        _settle(self, "value")
        return {name: node.value for name, node in self.needs.items()}


def _settle(last: Node, name: str) -> None:
    """Computes a cached property of all nodes below, deepest first: so no length of a chain is too long."""

    def below(node: Node) -> Iterable[Node]:
        needs = node._missing() if name == "value" else node.needs.values()
        return [need for need in needs if name not in vars(need)]

    for node in _walk([last], below):
        if node is not last:
            getattr(node, name)


class Value(Node):
    """A value that is computed in memory in each run that needs it, such as a model or user vectors.

    Args:
      options: inputs other than the needs.
      make: `make(*options, **values of needs)` computes the value.
      identity: a function whose result replaces the options in the key, such as the hash of a model's
        weights. It is called when the key is first read.
    """

    def __init__(
        self,
        name: str,
        options: tuple[Any, ...],
        needs: Mapping[str, Node],
        make: Callable[..., Any],
        *,
        identity: Callable[[], Any] | None = None,
        check: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(name, needs, check)
        self.options, self._make, self._identity = options, make, identity

    def _options_of(self) -> Any:
        return self.options if self._identity is None else self._identity()

    def _code(self) -> list[Any]:
        return [self._make, *_methods(self.options)]

    def _compute(self) -> Any:
        return self._make(*self.options, **self._values())


def _methods(value: Any) -> list[type]:
    """The classes of all methods in options: `make` calls theirs, whatever class they are of."""
    inner = value if isinstance(value, tuple) else vars(value).values() if isinstance(value, Options) else ()
    own = [type(value)] if isinstance(value, Method) else []
    return [*own, *(cls for one in inner for cls in _methods(one))]


def constant(name: str, value: Any) -> Value:
    """A constant as a node: options, a number or a text. It is part of the key."""
    return Value(name, (value,), {}, _same)


def _same(value: Any) -> Any:
    return value


class Slot(Node):
    """A method with its needs and, for a learner, the folder of its initial state. The value is a `Bound`."""

    def __init__(self, method: Method, run: Any) -> None:
        needs = dict(method.needs(run))
        if isinstance(method, Learner):
            label = f"{method.section}_state"
            needs["state"] = Stage("state", (), needs.copy(), method.start, Path, label=label)
        super().__init__(f"{method.section}.{method.method}", needs, partial(method.check_run, run))
        self.method = method

    def _options_of(self) -> Any:
        return self.method

    def _code(self) -> list[Any]:
        return _methods(self.method)

    def _compute(self) -> "Bound":
        return Bound(self.method, self._values())


@dataclass(frozen=True)
class Bound:
    """A method with the values of its needs. It builds the slot's callable from a `pipeline.Tally`."""

    method: Method
    values: Mapping[str, Any]

    def __call__(self, tally: Any) -> Any:
        return self.method.slot(tally, **self.values)


class Stage(Node):
    """A result that is computed once and kept on disk. Later runs read it from the cache.

    Args:
      name: letters, digits, `_` and `-`. Logs and `--dry` show it.
      options: a tuple of inputs other than the needs: options, numbers or texts.
      needs: the nodes that are its inputs, by the names of `make`'s arguments.
      make: `make(folder, *options, **values of needs)` writes files, or continues an interrupted attempt.
      load: `load(folder)` reads the value that `slot` and other nodes receive.
      label: the name in a run's list of durations, if a run has several stages with this name.
      content: maps the value to JSON, which represents this stage in the keys of nodes that need it. Their
        keys then need the value.
      together: how several processes compute it. None: only process 0 does.
    """

    def __init__(
        self,
        name: str,
        options: tuple[Any, ...],
        needs: Mapping[str, Node],
        make: Callable[..., None],
        load: Callable[[Path], Any],
        *,
        label: str = "",
        check: Callable[[], object] | None = None,
        content: Callable[[Any], Any] | None = None,
        together: Together | None = None,
    ) -> None:
        if not re.fullmatch(r"\w[\w-]*", name):  # it names a folder
            raise UserError(f"a stage is named {name!r}, want letters, digits, _ and -")
        super().__init__(name, needs, check)
        self.label, self.options, self._make, self._load = label or name, options, make, load
        self._content, self._together = content, together

    def _options_of(self) -> Any:
        return self.options

    def _code(self) -> list[Any]:
        return [self._make, self._load, *_methods(self.options)]

    @cached_property
    def known_by(self) -> str:
        if self._content is None:
            return self.key
        return digest({"stage": self.name, "content": self._content(self.value)})

    @cached_property
    def artefact(self) -> Artefact:
        """The folder of the result. If it is missing, it is computed now, including its needs."""
        _settle(self, "value")  # first, so that the seconds of what is needed are not counted as ours

        def make(folder: Path) -> None:
            if self._together is not None and processes.several():
                processes.order(self.key)
                self._join(folder)
            else:
                self._make(folder, *self.options, **self._values())
            edited = "" if self.unkept else self._edited()
            if edited:
                _move(folder, aside := temporary_folder())
                raise _Edited(edited, aside)

        self._tell_unkept()
        try:
            return obtain(
                self.name, self.identity, make, _log.get(), self.label, self._within, self._made_from()
            )
        except _Edited as edit:
            self._unkept, aside = edit.args
            self._tell_unkept()
            return obtain(self.name, self.identity, partial(_move, aside), None, self.label, self._within)

    def _edited(self) -> str:
        """Why code that has just run may be another than the one in the key."""
        nodes = _walk(
            [self], lambda node: [need for need in node.needs.values() if not isinstance(need, Stage)]
        )
        files = frozenset[Path]().union(*(code.files for node in nodes for code in node._codes))
        return sources.unkept(files)

    def _made_from(self) -> list[Path]:
        """The folders of the stages that it needs, directly or by values."""

        def below(node: Node) -> Iterable[Node]:
            return node.needs.values() if node is self or not isinstance(node, Stage) else ()

        return [node.folder for node in _walk([self], below) if isinstance(node, Stage) and node is not self]

    def _tell_unkept(self) -> None:
        why = self.unkept
        if why and processes.several():
            raise UserError(f"{why}; several processes cannot share what it computes")
        if why and why not in _told:
            _told.add(why)
            tell(self.label, f"its result is not kept for other runs, because {why}")

    def join(self) -> None:
        """Takes part in a computation that process 0 has announced."""
        _settle(self, "value")
        self._join(self.folder.with_suffix(".partial"))

    def _join(self, folder: Path) -> None:
        assert self._together is not None
        with processes.together():
            self._together(self._make, folder, self.options, self._values())

    def make(self, folder: Path, values: Mapping[str, Any]) -> None:
        """Computes the result from given values of the needs, in a folder outside the cache."""
        self._make(folder, *self.options, **values)

    def _compute(self) -> Any:
        return self._load(self.artefact.path)

    def _missing(self) -> Iterable[Node]:
        return self.needs.values() if "artefact" not in vars(self) and not self.is_made else ()

    @cached_property
    def _temporary(self) -> Path:
        return temporary_folder()

    @property
    def _within(self) -> Path | None:
        return self._temporary if self.unkept else None

    @property
    def folder(self) -> Path:
        """The folder of the result in the cache, or a temporary one. It may not exist yet."""
        return place(self.name, self.key, self._within)

    @property
    def was_made(self) -> bool:
        """Whether this process computed the result, rather than reading it."""
        return "artefact" in vars(self) and self.artefact.made

    @property
    def is_made(self) -> bool:
        """Whether there is a whole result."""
        return is_whole(self.folder)

    @property
    def seconds(self) -> float | None:
        """Seconds of computation over all attempts; None: there is no result."""
        return seconds_of(self.folder)

    @property
    def made_by(self) -> list[dict[str, Any]]:
        """Commit and versions of the processes that computed the result, if known."""
        return made_by(self.folder)


class _Edited(Exception):
    """Code was edited while a stage was made: why it is not kept, and the folder of what was made."""


def _move(source: Path, target: Path) -> None:
    for path in source.iterdir():
        shutil.move(path, target / path.name)


def walk(*last: Node) -> list[Node]:
    """All nodes that these nodes depend on and these nodes, each once, dependencies first."""
    return _walk(last, lambda node: node.needs.values())


def _walk(last: Iterable[Node], below: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """The same, with those alone that are `below` another."""
    found: dict[int, Node] = {}
    entered: set[int] = set()
    waiting = [(node, False) for node in reversed([*last])]
    while waiting:
        node, left = waiting.pop()
        if left:
            found[id(node)] = node
        elif id(node) not in entered:
            entered.add(id(node))
            waiting.append((node, True))
            waiting += [(need, False) for need in reversed([*below(node)])]
    return list(found.values())
