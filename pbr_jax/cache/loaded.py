"""What was loaded: the source file of a module of this package or of the user's, and what was executed of it.

From the import of this package on, the user's modules are executed by `_Recording`, which keeps their
sources. A module of this package that is edited after the process began is refused.
"""

import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Set
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).resolve().parents[1]
_INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")})
_SITE = ("site-packages", "dist-packages")  # of any interpreter, a user's own included


def is_own(module: str) -> bool:
    """Whether a module is of this package."""
    return module.partition(".")[0] == PACKAGE


@functools.cache
def is_installed(file: Path) -> bool:
    """Whether a file is of the Python library or of a package that an installer put where it is."""
    if any(folder in _INSTALLED or folder.name in _SITE for folder in file.parents):
        return True
    around = (folder for entry in sys.path if entry and (folder := Path(entry).resolve()) in file.parents)
    return any(file.relative_to(folder).parts[0] in _recorded(folder) for folder in around)


@functools.cache
def _recorded(folder: Path) -> frozenset[str]:
    """What installers put into a folder (`pip install --target`): names of packages and single modules."""
    found: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        found |= {line.partition(",")[0].partition("/")[0] for line in lines}
    return frozenset(found)


def file_of(module: str) -> Path | None:
    """The source file of a module of this package or of the user's; None for what has none (a notebook's
    cells, a script) and for what is installed."""
    if is_own(module):
        return _own_file(module.partition(".")[2])
    known = sys.modules.get(module)
    if known is None:
        spec = _spec(module)
        origin = None if spec is None else spec.origin
    else:
        origin = None if module == "__main__" else getattr(known, "__file__", None)
    if not origin or not origin.endswith(".py"):
        return None
    file = Path(origin).resolve()
    return file if file.is_file() and not is_installed(file) else None


@functools.cache
def _own_file(rest: str) -> Path | None:
    place = _ROOT.joinpath(*rest.split(".")) if rest else _ROOT
    options = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in options if file.is_file()), None)


def _spec(module: str) -> ModuleSpec | None:
    """Found without importing the packages that a module is in; None inside of installed ones."""
    known = sys.modules.get(module)
    try:
        if known is not None:
            return known.__spec__
        outer, _, _ = module.rpartition(".")
        if not outer:
            return importlib.util.find_spec(module)
        package = _spec(outer)
        if package is None or package.submodule_search_locations is None:
            return None
        if package.origin and is_installed(Path(package.origin).resolve()):
            return None
        return PathFinder.find_spec(module, list(package.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None


_loaded: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
_filled: WeakKeyDictionary[ModuleType, Set[str]] = WeakKeyDictionary()
_planned: dict[Path, bytes] = {}  # what keys counted of modules that were not loaded
_making = 0


@contextmanager
def making() -> Iterator[None]:
    """Inside, a module that a key counted before it was loaded is loaded as it was counted, or not at all."""
    global _making
    _making += 1
    try:
        yield
    finally:
        _making -= 1


def run(module: ModuleType, source: bytes, code: CodeType) -> None:
    """Executes a module, and records what it was executed from and which containers that filled."""
    _loaded[module] = source
    exec(code, module.__dict__)
    _filled[module] = {
        name for name, value in vars(module).items() if isinstance(value, dict | list | set) and value
    }


def filled(module: str) -> Set[str]:
    """The names of the containers of a module that held something when it had been imported."""
    return _filled.get(sys.modules[module], frozenset())


def source_of(module: str) -> bytes:
    """What was executed of a module, or would be where it is not loaded yet.

    Raises UserError where a file of this package was edited after the process began.
    """
    file, known = file_of(module), sys.modules.get(module)
    if file is None:
        raise ValueError(f"{module} has no file")
    if is_own(module):
        return _own_source(file)
    if known is None:
        _planned[file] = file.read_bytes()
        return _planned[file]
    if known not in _loaded:  # it was imported before us, or by a loader of its own
        _loaded[known] = file.read_bytes()
    return _loaded[known]


@functools.cache
def _own_source(file: Path) -> bytes:
    _refuse_edited(file)
    return file.read_bytes()


def _signature(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


_began = {file: _signature(file) for file in _ROOT.rglob("*.py")}  # our own files, as they are imported


def _refuse_edited(file: Path) -> None:
    if _began.get(file) != _signature(file):
        raise _edited(
            f"{file} was edited after this process began, which may have loaded it before; start another one"
        )


def _edited(text: str) -> Exception:
    from pbr_jax.base.types import UserError

    return UserError(text)


class _Recording(SourceFileLoader):
    """Executes what the file holds now (bytecode that Python cached may be of another edit of the same
    second), and records it."""

    def exec_module(self, module: ModuleType) -> None:
        source, file = self.get_data(self.path), Path(self.path).resolve()
        if _making and _planned.get(file, source) != source:
            raise _edited(f"{file}: edited after a key counted it and before it was loaded; run again")
        run(module, source, self.source_to_code(source, self.path))


class _Finder:
    """Finds the user's modules as Python does, to record what they are executed from."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or not spec.origin:
            return spec
        if is_own(name):
            if file := _own_file(name.partition(".")[2]):
                _refuse_edited(file)
        elif not any(site in spec.origin for site in _SITE) and not is_installed(Path(spec.origin).resolve()):
            spec.loader = _Recording(name, spec.origin)
        return spec


if _Finder not in sys.meta_path:
    at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(at, _Finder)


@functools.lru_cache(maxsize=256)
def codes(source: bytes) -> frozenset[CodeType]:
    """The code of all functions and classes in a source."""
    found: set[CodeType] = set()
    waiting = [compile(source, "", "exec", dont_inherit=True)]
    while waiting:
        inner = [value for value in waiting.pop().co_consts if isinstance(value, CodeType)]
        found |= set(inner)
        waiting += inner
    return frozenset(found)
