"""What stands for code in a key, so that an edit of a function never returns what the old one computed.

Code counts by the files of its modules (`sources`), with the plain values and options that partials, methods
and closures hold. Code that cannot be tied to a file as it was executed (a class typed in a notebook, a file
that is newer than the process, a closure over an object) has a hash that no other process has, and a reason
why what it computes is not kept.

Not seen is what is reached by name at run time (`getattr`, `importlib`, a folder that a function adds to
`sys.path`), what a module reads when it is imported, what somebody assigns to its names afterwards, and whole
folders that change their places while the process runs.
"""

import functools
import hashlib
import secrets
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pbr_jax.cache import sources
from pbr_jax.options import Options, key_of

_PLAIN = (bool, int, float, complex, str, bytes, Path, type(None))


class Code(NamedTuple):
    """The hash of some code, the files that must stay as they are while it computes, and why what it
    computes is not kept (empty: it is)."""

    hash: str
    files: frozenset[Path]
    unkept: str


def code_of(made: Any) -> str:
    """The hash of the code behind a function, a method or a class, its bases included; sixteen hex digits."""
    return described(made).hash


def described(made: Any) -> Code:
    """The hash with its files and with the reason why results are not kept."""
    code = _Description()
    line = code.of(made)
    closures = [sources.closure(module, source) for module, source in code.modules.items()]
    unkept = next((why for why in (*code.unkept, *(one.unkept for one in closures)) if why), "")
    lines = sorted({line for one in closures for line in one.lines})
    parts = [line, lines, _token(made) if unkept else ""]
    files = frozenset[Path]().union(*(one.files for one in closures))
    return Code(hashlib.sha256(repr(parts).encode()).hexdigest()[:16], files, unkept)


_tokens: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _token(made: Any) -> str:
    """A random text that stands for an object in this process alone."""
    try:
        return _tokens.setdefault(made, secrets.token_hex(8))
    except TypeError:  # it has no hash, or nothing may refer to it weakly
        return secrets.token_hex(8)


class _Description:
    """The modules that count for some code, each with its source if it was executed by `sources.run`, and
    reasons why no file tells what it computes."""

    def __init__(self) -> None:
        self.modules: dict[str, bytes | None] = {}
        self.unkept: list[str] = []
        self._around: list[Any] = []  # what is being described

    def of(self, value: Any) -> Any:
        """What identifies a value, as nested lists of texts."""
        if any(value is one for one in self._around):
            return "around"
        self._around.append(value)
        line = self._of(value)
        self._around.pop()
        return line

    def _of(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Options):
            return [repr(key_of(value)), self.of(type(value))]
        if type(value) in (list, tuple):
            return [self.of(one) for one in value]
        if isinstance(value, Mapping):
            return [[repr(name), self.of(value[name])] for name in sorted(value, key=repr)]
        if isinstance(value, functools.partial):
            return [self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, types.MethodType):
            return [self.of(value.__self__), self.of(value.__func__)]
        if isinstance(value, type):
            return [self._class(base) for base in (*value.__mro__, type(value))]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return self._module(value.__name__, vars(value), value.__name__)
        if hasattr(value, "__wrapped__"):  # as `functools.cache` and `jax.jit` make them
            return [type(value).__qualname__, self.of(value.__wrapped__)]
        if isinstance(value, types.BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        self.unkept.append(f"code holds a {type(value).__name__}, which nothing tells from another")
        return ""

    def _class(self, cls: type) -> str:
        module, loaded = cls.__module__, sys.modules.get(cls.__module__)
        functions = [_unwrapped(one) for one in vars(cls).values() if isinstance(one, types.FunctionType)]
        spaces = (one.__globals__ for one in functions if one.__globals__.get("__name__") == module)
        space = next(spaces, vars(loaded) if loaded else {})
        if not _is_library(module) and _named(space, cls.__qualname__) is not cls:
            self.unkept.append(f"{cls.__qualname__} is not what {module} has by this name")
        for function in functions:
            if not function.__name__.startswith("__"):  # those may be generated
                self._written(function)  # the file of one that was assigned to the class counts too
        return self._module(module, space, cls.__qualname__)

    def _function(self, function: types.FunctionType) -> Any:
        function = _unwrapped(function)
        name, inner = self._written(function), "<locals>" in function.__qualname__
        if function.__name__ == "<lambda>":
            self.unkept.append(f"{name} has no name in a file")
        line = function.__code__.co_firstlineno if inner else 0  # there may be several of a name
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
        defaults = [function.__defaults__, function.__kwdefaults__] if inner else []
        return [name, line, self.of([*cells, *defaults])]

    def _written(self, function: types.FunctionType) -> str:
        """Adds the module of a function, whose file must be the one that it was compiled from."""
        module = str(function.__globals__.get("__name__"))
        name = self._module(module, function.__globals__, function.__qualname__)
        file = None if _is_library(module) else sources.file_of(module)
        if file and Path(function.__code__.co_filename).name != file.name:
            self.unkept.append(f"{name} has no name in a file")
        return name

    def _module(self, module: str, space: dict[str, Any], name: str) -> str:
        """Adds the module of a class or function to those that count, by its globals."""
        if _is_library(module):
            return f"{module}.{name}"
        source = sources.executed(space)
        loaded = sys.modules.get(module)
        if sources.file_of(module) is None or (
            source is None and (loaded is None or vars(loaded) is not space)
        ):
            self.unkept.append(f"{name} is in no file")
        else:
            self.modules[module] = source
        return f"{sources.place_of(module)}.{name}"


def _named(space: Mapping[str, Any], name: str) -> Any:
    first, *inner = name.split(".")
    return functools.reduce(lambda found, part: getattr(found, part, None), inner, space.get(first))


def _unwrapped(function: types.FunctionType) -> types.FunctionType:
    while (wrapped := getattr(function, "__wrapped__", None)) and _checks_types(function):
        function = wrapped
    return function


def _checks_types(function: types.FunctionType) -> bool:
    """Whether a library made a function that wraps another, as those that check types do in our tests."""
    return _is_library(function.__globals__.get("__name__")) or "<@" in function.__code__.co_filename


def _is_library(module: Any) -> bool:
    """Whether a module is installed or comes with Python: nobody edits these."""
    if not isinstance(module, str):
        return False
    if module == "__main__" or sources.is_own(module):
        return False
    if module in sys.builtin_module_names or module == "typing":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and sources.is_installed(Path(file).resolve())
