"""What code computes, as a hash: so that an edit of a function never returns what the old one computed.

The code of a function is that of its module and of every module that it imports, as far as these are being
worked on: an installed pbr_jax is known by its version, the Python library and other installed packages are
not looked at. What counts is the syntax tree without docstrings, so comments, layout and documentation move
no key. Code without a file (a notebook's) counts by its bytecode and by the values that it names. What a
function holds beside its code counts too: the arguments of a partial, the object of a method, a closure.

The price: in a checkout an edit of a module that everything imports, such as `types`, makes everything
anew (answers of language models are kept apart, and stay). Not seen is what a module of a file computes when
it is imported (from an environment variable, say), and what is reached by name at run time (`getattr`,
`importlib`). A file counts as it was when the process first looked at it.
"""

import dataclasses
import dis
import functools
import hashlib
import inspect
import pickle
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbr_jax.options import Options, key_of
from pbr_jax.sources import closure, file_of, is_installed, source_of
from pbr_jax.types import UserError

_PACKAGE = __name__.partition(".")[0]
_NOWHERE = ("builtins", "abc", "typing")
_CODE = (type, functools.partial, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_SEEN = "seen"  # stands for what is being told already: functions that name each other


def code_of(made: Any) -> str:
    """The hash of the code behind a function, a method or a class, its bases included; sixteen hex digits.

    Raises:
      UserError: it holds a value that no hash tells apart.
    """
    return _hashed(_code(made, frozenset()))


def _hashed(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _code(made: Any, seen: frozenset[int]) -> Any:
    """What stands for some code: hashes of sources, and the values that it holds."""
    held: list[Any] = []
    while isinstance(made, functools.partial):
        held += [made.args, made.keywords]
        made = made.func
    owner = getattr(made, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        held.append(owner)
    made = inspect.unwrap(getattr(made, "__func__", made))
    if not isinstance(made, _CODE):  # an object that can be called
        return _told(made, seen)
    if id(made) in seen:
        return _SEEN
    seen |= {id(made)}
    sources: set[str] = set()
    for part in made.__mro__ if isinstance(made, type) else (made,):
        name = part.__module__
        if name in _NOWHERE:
            continue
        file = file_of(name)
        if file is None:
            sources.add(_hashed(_spoken(part, seen)))
            continue
        sources |= closure(name, file, source_of(name))
        if not is_installed(file):
            held += [_cells(function) for function in _functions(part)]
    told = [
        _told(value, seen) for value in held if not (isinstance(value, tuple | dict | list) and not value)
    ]
    return [sorted(sources), told] if told else sorted(sources)


# -- code without a file, and values that code holds ---------------------------------------------------


def _spoken(made: Any, seen: frozenset[int]) -> Any:
    """A function or class without a file: bytecode, defaults, and the values of the names that it uses."""
    if isinstance(made, type):
        plain = {
            name: _told(value, seen)
            for name, value in sorted(vars(made).items())
            if not name.startswith("__") and not _is_code(value)
        }
        return [made.__qualname__, plain, [_spoken(one, seen) for one in _functions(made)]]
    if not isinstance(made, types.FunctionType):
        return repr(made)
    space = made.__globals__
    named = {name: _told(space[name], seen) for name in sorted(_globals(made.__code__)) if name in space}
    own = [made.__defaults__, made.__kwdefaults__, _cells(made)]
    return [_bytecode(made.__code__, made.__doc__), named, [_told(value, seen) for value in own]]


def _bytecode(code: types.CodeType, doc: str | None = None) -> Any:
    constants = [
        _bytecode(value) if isinstance(value, types.CodeType) else repr(value)
        for value in code.co_consts
        if doc is None or value != doc
    ]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]


def _globals(code: types.CodeType) -> set[str]:
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    inner = (value for value in code.co_consts if isinstance(value, types.CodeType))
    return found.union(*map(_globals, inner))


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType | staticmethod | classmethod | property)


def _functions(made: Any) -> list[types.FunctionType]:
    """A function itself, or those that a class defines; not what `dataclass` wrote for it."""
    if not isinstance(made, type):
        return [made] if isinstance(made, types.FunctionType) else []
    found = []
    for name, value in vars(made).items():
        getters = [value.fget, value.fset] if isinstance(value, property) else [value]
        for getter in getters:
            function = inspect.unwrap(getattr(getter, "__func__", getter)) if _is_code(value) else None
            if isinstance(function, types.FunctionType) and not _written_by_dataclass(made, name, function):
                found.append(function)
    return found


def _written_by_dataclass(cls: type, name: str, function: types.FunctionType) -> bool:
    return (
        dataclasses.is_dataclass(cls)
        and name.startswith("__")
        and function.__code__.co_filename == "<string>"
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


def _told(value: Any, seen: frozenset[int]) -> Any:
    """What tells a value from another. Raises UserError where nothing does."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, Options):
        return [key_of(value), _code(type(value), seen)]
    if isinstance(value, types.ModuleType):
        file = file_of(value.__name__)
        return (
            [value.__name__]
            if file is None
            else sorted(closure(value.__name__, file, source_of(value.__name__)))
        )
    if isinstance(value, _CODE) or hasattr(value, "__wrapped__"):
        return _code(value, seen) if not _is_library(value) else repr((value.__module__, _name(value)))
    if isinstance(value, Mapping):
        return sorted([repr(name), repr(_told(inner, seen))] for name, inner in value.items())
    if isinstance(value, list | tuple):
        return [_told(inner, seen) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_told(inner, seen)) for inner in value)
    try:
        return [_code(type(value), seen), hashlib.sha256(pickle.dumps(value)).hexdigest()]
    except Exception as error:  # whatever a class of the user's raises
        raise UserError(
            f"code holds a {type(value).__name__}, which nothing tells from another; "
            "pass it as an option, or make it in a node that the method needs"
        ) from error


def _is_library(value: Any) -> bool:
    """Whether a function or class is of an installed package or comes with Python: nobody edits these."""
    if isinstance(value, functools.partial):
        return False
    name = getattr(value, "__module__", None) or "builtins"
    top = name.partition(".")[0]
    if top in ("__main__", _PACKAGE):
        return False
    place = getattr(sys.modules.get(name), "__file__", None)
    outside = bool(place) and (not place.endswith(".py") or is_installed(Path(place).resolve()))
    return top in sys.stdlib_module_names or outside


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__qualname__)
