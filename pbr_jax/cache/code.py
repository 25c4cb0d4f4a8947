"""What stands for code in a key, so that an edit of a function never returns what the old one computed.

Code counts by the sources of its module and of all that this imports (`sources`). A function or class of the
user's counts besides by the values that it holds (arguments of a partial, the object of a method, closures,
defaults, attributes) and by those of the global names that it reads, as they are now, and so do the functions
and classes among these. Code whose module was not executed from a file counts by its bytecode in place of a
source: a notebook's cells, a script, what `exec` ran, a function that its reloaded module no longer has.

Not seen is what is reached by name at run time (`getattr`, `importlib`), and what somebody assigns to the
modules of this package.
"""

import copyreg
import dataclasses
import dis
import functools
import hashlib
import inspect
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.cache import loaded, sources
from pbr_jax.options import Options, key_of

_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_WRAPPED = (
    types.MethodType,
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
    functools.partialmethod,
)
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, set, frozenset)
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_UNTOLD = re.compile(
    r"__(module|dict|weakref|qualname|annot\w+|firstlineno|static_attributes|hash"
    r"|abstractmethods|dataclass_\w+|parameters|orig_bases)__|_abc_impl"
)
"""Attributes of a class that Python keeps for itself."""


class Code(NamedTuple):
    """The hash of some code, and what stands for its sources, which must not change while it computes."""

    hash: str
    sources: list[str]


def code_of(made: Any) -> str:
    """The hash of the code behind a function, a method or a class, its bases included; sixteen hex digits.

    Raises:
      UserError: it holds a value that no hash tells from another.
    """
    return described(made).hash


def described(made: Any) -> Code:
    """The same with its sources."""
    found = _Description(made)
    closure = sources.closure(*found.modules)
    return Code(hashlib.sha256(repr([closure, found.lines]).encode()).hexdigest()[:16], closure)


class _Description:
    """Modules whose sources count, and a line for each function, class and object that code reaches."""

    def __init__(self, made: Any) -> None:
        self.modules: set[str] = set()
        self.lines: list[str] = []
        self._numbers: dict[int, tuple[int, Any]] = {}  # with what they stand for, whose id none other gets
        self._waiting: deque[tuple[Any, bool]] = deque()
        self._around: list[int] = []  # the containers that are being described
        self.lines.append(repr(self.value(made, strict=True)))
        while self._waiting:
            one, strict = self._waiting.popleft()
            self.lines.append(repr(self._described(one, strict)))

    def value(self, value: Any, *, strict: bool) -> Any:
        """What identifies a value in a key. `strict`: raises UserError for one that cannot be identified."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Options):
            return [key_of(value), self._later(type(value), strict)]
        if isinstance(value, types.ModuleType):
            if not hasattr(value, "__path__") or not loaded.is_own(value.__name__):
                self.modules.add(value.__name__)
            return value.__name__
        if isinstance(value, types.CodeType):
            return self._bytecode(value)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
        if isinstance(value, _WEAK):  # such as the cache of `functools.singledispatch`
            return _name(type(value))
        if type(value) in _CONTAINERS:
            return self._container(value, strict)
        if isinstance(value, types.BuiltinFunctionType):
            bound = [] if isinstance(value.__self__, types.ModuleType | type(None)) else [value.__self__]
            return [_name(value), *(self.value(one, strict=strict) for one in bound)]
        if _is_library(value):
            return _name(value)
        return self._later(value, strict)

    def _later(self, value: Any, strict: bool) -> str:
        """A number, under which a line describes it."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers), value
            self._waiting.append((value, strict))
        return f"#{self._numbers[id(value)][0]}"

    def _container(self, value: Any, strict: bool) -> Any:
        if id(value) in self._around:
            return "around"
        self._around.append(id(value))
        items = value.items() if isinstance(value, Mapping) else value
        found = [self.value(one, strict=strict) for one in items]
        self._around.pop()
        found = sorted(found, key=repr) if isinstance(value, set | frozenset) else found
        return [self.value(type(value), strict=strict), found]

    def _named(self, values: Mapping[str, Any], *, strict: bool) -> list[Any]:
        return [(name, self.value(values[name], strict=strict)) for name in sorted(values)]

    # -- functions, classes, objects --

    def _described(self, one: Any, strict: bool) -> Any:
        if isinstance(one, functools.partial):
            return [self.value(part, strict=strict) for part in (one.func, one.args, one.keywords)]
        if isinstance(one, _WRAPPED):
            names = ("__self__", "__func__", "fget", "fset", "fdel", "func", "args", "keywords")
            return self._named(
                {name: getattr(one, name) for name in names if hasattr(one, name)}, strict=strict
            )
        if isinstance(one, type):
            return self._class(one)
        if isinstance(one, types.FunctionType):
            return self._function(one)
        if hasattr(one, "__wrapped__"):  # of a library, such as `functools.cache` and `jax.jit` make them
            return [type(one).__qualname__, self.value(one.__wrapped__, strict=strict)]
        return self._object(one, strict)

    def _function(self, function: types.FunctionType) -> Any:
        space, code = function.__globals__, function.__code__
        module, inner = str(space.get("__name__")), inspect.unwrap(function)
        if loaded.is_own(str(inner.__module__)) and (loaded.is_own(module) or _is_check(function)):
            self.modules.add(inner.__module__)
            local = "<" in inner.__qualname__  # it may stand in a function that chooses nodes
            cells = [] if _is_check(function) or function is inner else _cells(function)
            held = [self.value(value, strict=True) for value in (*cells, *_cells(inner))]
            return [inner.__qualname__, self._bytecode(inner.__code__) if local else None, held]
        cells = [self.value(value, strict=not _is_installed(module)) for value in _cells(function)]
        held = {"defaults": function.__defaults__, "keywords": function.__kwdefaults__, "own": vars(function)}
        if _is_installed(module):
            return [_name(function), cells, self._named(held, strict=False)]
        file = loaded.file_of(module) if module in sys.modules else None
        in_source = False
        if file is not None:
            self.modules.add(module)
            in_source = code in loaded.codes(loaded.source_of(module))
        return [
            function.__qualname__,
            None if in_source else self._bytecode(code),
            self._globals(code, space, _memos(module) if file else (), strict=file is None),
            self._named(held, strict=file is None),
            cells,
        ]

    def _globals(
        self, code: types.CodeType, space: Mapping[str, Any], memos: Collection[str], *, strict: bool
    ) -> list[Any]:
        """The values of the global names that code reads, and of what it may read of modules among these."""
        every = [code, *_inner(code)]
        read = {
            str(step.argval) for one in every for step in dis.get_instructions(one) if step.opname in _READS
        }
        names = {name for one in every for name in one.co_names}
        waiting = [(name, space[name], strict) for name in sorted(read & space.keys() - set(memos))]
        found, seen = [], set()
        while waiting:
            name, value, hard = waiting.pop()
            found.append((name, self.value(value, strict=hard)))
            if isinstance(value, types.ModuleType) and not _is_library(value) and id(value) not in seen:
                seen.add(id(value))
                inside = sorted(names & vars(value).keys())
                waiting += [(f"{name}.{one}", vars(value)[one], False) for one in inside]
        return found

    def _class(self, made: type) -> Any:
        bases = [self.value(base, strict=False) for base in (type(made), *made.__bases__)]
        if loaded.is_own(made.__module__):
            self.modules.add(made.__module__)
            return [made.__qualname__, bases, *self._local_methods(made)]
        from_file = loaded.file_of(made.__module__) is not None
        if from_file:
            self.modules.add(made.__module__)
        held = {
            name: value
            for name, value in vars(made).items()
            if not _UNTOLD.fullmatch(name)
            and not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
            and not _written_by_dataclass(made, name, value)
        }
        return [made.__qualname__, bases, self._named(held, strict=not from_file)]

    def _local_methods(self, made: type) -> Iterator[Any]:
        """What the methods of a class of ours hold, which a function made."""
        if "<" in made.__qualname__:
            for value in vars(made).values():
                if isinstance(value, types.FunctionType):
                    yield [self.value(cell, strict=True) for cell in _cells(value)]

    def _object(self, one: Any, strict: bool) -> Any:
        kind = type(one)
        if not _is_library(kind) and hasattr(one, "__dict__") and not isinstance(one, BaseException):
            slots = {
                name: getattr(one, name)
                for base in kind.__mro__
                for name in _slots(base)
                if hasattr(one, name)
            }
            named = self._named(slots | vars(one), strict=strict)
            return [self.value(kind, strict=strict), named, self.value(_items(one), strict=strict)]
        try:
            return [self.value(kind, strict=strict), self.value(_parts(one), strict=strict)]
        except Exception as error:  # whatever a class of the user's raises
            if not strict:
                return self.value(kind, strict=False)
            raise UserError(
                f"code holds a {kind.__name__}, which nothing tells from another; pass it as an option, or "
                "make it in a node that the method needs"
            ) from error

    def _bytecode(self, code: types.CodeType) -> Any:
        shape = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        constants = [self.value(value, strict=True) for value in code.co_consts]
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return [code.co_code.hex(), code.co_exceptiontable.hex(), shape, constants, names]


def _memos(module: str) -> list[str]:
    """The names of a module that are empty until its functions fill them, after it was imported."""
    return [name for name in sources.memos(module) if name not in loaded.filled(module)]


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield value
            yield from _inner(value)


def _items(one: Any) -> Any:
    """What an object holds that is a container of a class of its own."""
    if isinstance(one, dict):
        return dict(dict.items(one))
    if isinstance(one, set | frozenset):
        return {*one}
    return [*one] if isinstance(one, list | tuple | deque) else None


def _parts(one: Any) -> Any:
    """What pickle would write of an object, before it writes what is in that."""
    if isinstance(one, set | frozenset):
        return _items(one)
    reduce = copyreg.dispatch_table.get(type(one))
    parts = reduce(one) if reduce else one.__reduce_ex__(4)
    return parts if isinstance(parts, str) else [[*p] if isinstance(p, Iterator) else p for p in parts]


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _written_by_dataclass(cls: type, name: str, value: Any) -> bool:
    return (
        dataclasses.is_dataclass(cls)
        and name.startswith("__")
        and isinstance(value, types.FunctionType)
        and inspect.unwrap(value).__code__.co_filename == "<string>"
    )


def _cells(function: types.FunctionType) -> list[Any]:
    """The values that a function's closure holds, but the class that `super` needs."""
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found += [cell.cell_contents] if name != "__class__" else []
        except ValueError:  # not filled yet
            continue
    return found


def _is_library(value: Any) -> bool:
    """Whether a function, class or module is of an installed package or comes with Python: nobody edits
    these. What wraps other code is not."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, type):
        name = value.__module__
        if name == "builtins" and value.__flags__ & _MADE_IN_PYTHON:  # `exec` without a module's name
            return False
    elif (
        isinstance(value, types.FunctionType) and not hasattr(value, "__wrapped__") and not value.__closure__
    ):
        name = value.__globals__.get("__name__")
    else:
        return False
    if not isinstance(name, str):
        return isinstance(value, type)  # a class in C, of Cython
    return _is_installed(name)


def _is_installed(module: str) -> bool:
    if module == "__main__" or loaded.is_own(module):
        return False
    if module in sys.builtin_module_names or module == "typing":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and (not file.endswith(".py") or loaded.is_installed(Path(file).resolve()))


def _is_check(function: types.FunctionType) -> bool:
    """Whether a function checks the types of another, as in our tests, and computes nothing else."""
    return (
        function.__code__.co_filename.startswith("<@beartype") or "jaxtyping" in function.__code__.co_filename
    )


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')} {getattr(value, '__qualname__', '')}"
