"""Sources: the files of modules, what they import, and the hash of all that a module runs.

A module counts with every module that it imports, as far as these are being worked on: an installed pbr_jax
is known by its version, the Python library and other installed packages are not looked at. What counts is
the syntax tree without docstrings. A file counts as it was when the process first looked at it.
"""

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pbr_jax.hashes import remembered
from pbr_jax.types import UserError

_PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).resolve().parent
_INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")})
_SITE = ("site-packages", "dist-packages")  # of any interpreter, a user's own included
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def imports(source: bytes) -> set[str]:
    """The names of the modules and packages that a source imports, parts of packages left out."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in found}


@functools.lru_cache(maxsize=256)
def closure(module: str, file: Path, source: bytes | None) -> frozenset[str]:
    """The hashes of a module and of all that it imports; `source`: what was run in place of its file."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting: list[tuple[str, Path]] = [(module, file)]
    while waiting:
        name, path = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if is_installed(path):
            found |= {f"{_PACKAGE} {_version()}"} if name.partition(".")[0] == _PACKAGE else set()
            continue
        text = source if name == module and source is not None else source_of(name) or _content(path, name)
        value, imported = _parsed(name, path.name == "__init__.py", text)
        found.add(f"{path.name} {value}")
        waiting += [(other, its) for other in imported if (its := file_of(other)) is not None]
    return frozenset(found)


@functools.cache
def _version() -> str | None:
    """The version of this package where an installer put it here; None: it is a checkout or a copy, which may
    be edited, whatever else is installed by its name."""
    try:
        found = metadata.distribution("pbr-jax")
    except metadata.PackageNotFoundError:
        return None
    return found.version if Path(str(found.locate_file(_PACKAGE))).resolve() == _ROOT else None


@functools.cache
def is_installed(file: Path) -> bool:
    """Whether a file is of the Python library or of a package that an installer put where it is."""
    if _ROOT in file.parents:
        return _version() is not None
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
    """The source file of a module; None for what has none (a notebook's cells) or is of no interest."""
    top, _, rest = module.partition(".")
    if top == _PACKAGE:
        return _own_file(rest)
    known = sys.modules.get(module)
    if known is not None and not getattr(known, "__file__", None):
        return None
    return _foreign_file(module)


@functools.cache
def _own_file(rest: str) -> Path | None:
    place = _ROOT.joinpath(*rest.split(".")) if rest else _ROOT
    options = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in options if file.is_file()), None)


@functools.cache
def _foreign_file(module: str) -> Path | None:
    """Found without importing installed packages, which to look for a part of one would do."""
    if _is_closed_part(module):
        return None
    known = sys.modules.get(module)
    origin = getattr(known, "__file__", None)
    if known is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            return None
        origin = spec.origin if spec is not None else None
    return Path(origin).resolve() if origin and origin.endswith(".py") else None


def _is_closed_part(module: str) -> bool:
    """Whether a module is part of an installed package, whose parts are not looked at."""
    package = module.rpartition(".")[0]
    if not package or package.partition(".")[0] == _PACKAGE:
        return False
    file = _foreign_file(package)
    return not _is_namespace(package) if file is None else is_installed(file)


def _is_namespace(module: str) -> bool:
    """Whether a name is that of a folder without `__init__.py`, which has no file of its own."""
    known = sys.modules.get(module)
    if known is not None:
        return hasattr(known, "__path__") and not getattr(known, "__file__", None)
    if _is_closed_part(module):
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def source_of(module: str) -> bytes | None:
    """What was run of a config file and of what lies beside it, whatever has come there since."""
    kept = getattr(sys.modules.get(module), "__source__", None)
    return kept if isinstance(kept, bytes) else None


def _signature(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


_began = {file: _signature(file) for file in _ROOT.rglob("*.py")}  # our own files, as they are imported
_unloaded: dict[Path, bytes] = {}  # files that were read before anybody imported them, and may yet be


@functools.cache
def _content(file: Path, module: str) -> bytes:
    """Raises UserError where this process runs something else."""
    if module not in sys.modules:
        return _unloaded.setdefault(file, file.read_bytes())
    if file in _began and _signature(file) != _began[file]:
        raise UserError(
            f"{file} was edited after this process had loaded it, and no key could tell which was run; "
            "start another process"
        )
    return file.read_bytes()


def refuse_edited(what: str) -> None:
    """Raises UserError where code may have run, while something was made, that is not what its key says."""
    for file, content in _unloaded.items():
        if not file.is_file() or file.read_bytes() != content:
            raise UserError(f"{file} was edited while {what} was made, which is not kept; run again")


@functools.lru_cache(maxsize=2048)
def _parsed(module: str, is_package: bool, source: bytes) -> tuple[str, tuple[str, ...]]:
    """The hash of a source's syntax tree, and the modules that it imports."""
    key = f"syntax {sys.version} {_reader()} {hashlib.sha256(source).hexdigest()}"
    value, imports = remembered(key, lambda: _hash(ast.parse(source)))
    return value, tuple(dict.fromkeys(name for one in imports for name in _names(one, module, is_package)))


@functools.cache
def _reader() -> str:
    """This file's hash: what it remembers of sources depends on it."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


_Import = Sequence[Any]
"""`from MODULE import NAMES` as [MODULE, LEVEL, NAMES], and `import NAMES` as [None, -1, NAMES]."""


def _hash(tree: ast.Module) -> list[Any]:
    """The hash of a tree without its docstrings, and the imports in it, as JSON."""
    imports: list[_Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            origin = (node.module, node.level) if isinstance(node, ast.ImportFrom) else (None, -1)
            imports.append([*origin, names])
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return [hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16], imports]


def _names(imported: _Import, module: str, is_package: bool) -> Iterator[str]:
    """The modules that an import runs: `from a import b` is a.b where that is a module, and a.

    Our own packages only gather names, and would gather everything: of them only a.b counts.
    """
    origin, level, names = imported
    if level < 0:
        for name in names:
            yield from _with_parents(name)
        return
    base = _absolute(origin, level, module, is_package)
    own = base.partition(".")[0] == _PACKAGE
    package = file_of(base)
    inside = _is_namespace(base) if package is None else package.name == "__init__.py"
    inside = inside and (package is None or not is_installed(package))
    inner = [f"{base}.{name}" for name in names]
    modules = [name for name in inner if inside and file_of(name) is not None]
    yield from modules
    if not own or len(modules) < len(inner):
        yield from _with_parents(base)


def _with_parents(module: str) -> Iterator[str]:
    """A module and, unless they are our own, the packages that it is in."""
    parts = module.split(".")
    yield module
    if parts[0] != _PACKAGE:
        yield from (".".join(parts[:count]) for count in range(1, len(parts)))


def _absolute(origin: str | None, level: int, module: str, is_package: bool) -> str:
    if not level:
        return origin or ""
    parents = module.split(".")
    parents = parents[: len(parents) - level + is_package]
    return ".".join([*parents, *([origin] if origin else [])])
