"""Sources: the files of modules, what they import, and the bytes that count in a key.

A module counts by its bytes, with every module that it imports, but for Python's library and installed
packages. Of this package, functions marked with `builds_nodes` or `once` do not count (nodes have keys of
their own), nor does what they alone import; `counted` lists the modules that never count. A file stands for
the code that runs only while it is older than this process, or where it was executed by `run`.
"""

import ast
import functools
import hashlib
import importlib.util
import marshal
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeGuard

from pbr_jax.base.file_hashes import recall, remember
from pbr_jax.cache.counted import stand_in

PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).resolve().parents[1]
_INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")})
_SITE = ("site-packages", "dist-packages")  # of any interpreter, a user's own included
_MARKS = {"builds_nodes", "once"}  # of `graph` and `stages.run`
_SOURCE = "__pbr_jax_source__"


class Closure(NamedTuple):
    """What stands for the code of a module and of all that it imports.

    `lines`: a line for each part; `modules`: the names of those that count by their source; `files`: theirs;
    `unkept`: why a file is not what runs, empty where all are.
    """

    lines: frozenset[str]
    modules: frozenset[str]
    files: frozenset[Path]
    unkept: str


def imports(source: bytes) -> set[str]:
    """The names of the modules and packages that a source imports, parts of packages left out."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    return {base.partition(".")[0] for base, _ in _imported(ast.walk(tree), "", False) if base}


def run(module: ModuleType, source: bytes, path: Path) -> None:
    """Executes a source in a module, which remembers it: whatever the file says later, this is what runs."""
    exec(compile(source, str(path), "exec"), vars(module))
    vars(module)[_SOURCE] = source


def executed(space: dict[str, Any]) -> bytes | None:
    """The source that `run` executed in a module's globals; None for other modules."""
    return space.get(_SOURCE)


def place_of(module: str) -> str:
    """The name of a module in a key. That of a config tells its folder, so its file's counts, as of a module
    that is imported from there."""
    loaded = sys.modules.get(module)
    return module if loaded is None or executed(vars(loaded)) is None else Path(str(loaded.__file__)).stem


def closure(root: str, source: bytes | None = None) -> Closure:
    """The closure of a module. `source`: what was executed of it, if not its file."""
    return _own(root) if is_own(root) else _closure(root, source)


@functools.cache
def _own(root: str) -> Closure:
    return _closure(root, None)


def _closure(root: str, source: bytes | None) -> Closure:
    lines: set[str] = set()
    modules: set[str] = set()
    files: set[Path] = set()
    waiting, seen = [root, *(() if is_own(root) else _modules(root, None, root))], set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if is_own(module):
            stands = stand_in(module[len(PACKAGE) + 1 :], root[len(PACKAGE) + 1 :])
            if stands is not None:
                lines |= {stands} - {""}
                continue
        file = file_of(module)
        if file is None:
            continue
        content = source if module == root and source is not None else None
        if content is None:
            content = executed(vars(sys.modules[module])) if module in sys.modules else None
        if content is None:
            files.add(file)
            content = _read_own(file) if is_own(module) else file.read_bytes() if file.is_file() else b""
        parsed = _parsed(module, file.name == "__init__.py", content)
        lines.add(f"{place_of(module)} {parsed['hash']}")
        modules.add(module)
        if parsed["scans"]:
            waiting += [f"{module}.{path.stem}" for path in file.parent.glob("[!_]*.py")]
        for base, imported in parsed["imports"]:
            if is_own(base) or not is_own(module):
                waiting += _modules(base, imported, module)
    return Closure(frozenset(lines), frozenset(modules), frozenset(files), unkept(files))


@functools.cache
def _read_own(file: Path) -> bytes:
    return file.read_bytes()


def _modules(base: str, name: str | None, importer: str) -> Iterator[str]:
    """The modules that an import runs: `from a import b` is a.b where that is a module, and a.

    The packages of this package only gather names: of them counts the module that defines the name.
    """
    if not is_own(base):
        if name == "*" and (file := file_of(base)) is not None and file.name == "__init__.py":
            yield from (f"{base}.{path.stem}" for path in file.parent.glob("[!_]*.py"))  # of its `__all__`
        inner = f"{base}.{name}"
        if name is not None and file_of(base) is None and file_of(inner) is None:
            return
        yield from (inner,) if name is not None else ()
        parts = base.split(".")
        yield from (".".join(parts[: count + 1]) for count in range(len(parts)))
        return
    module = base if name is None or file_of(f"{base}.{name}") is None else f"{base}.{name}"
    file = file_of(module)
    if file is None:
        return
    stub = file.with_suffix(".pyi")  # of names that are imported when first used (`base.lazy`)
    gathers = stub if stub.is_file() else file
    exported = _parsed(module, True, _read_own(gathers))["exports"] if file.name == "__init__.py" else {}
    if module == base and name in exported:
        origin, one = exported[name]
        yield from _modules(origin, one, importer)
        return
    yield module
    # All that a package gathers, which is used as an object; of the user's modules `_attributes` tells more.
    if exported and (name == "*" or (module != base and is_own(importer))):
        for origin, one in exported.values():
            yield from _modules(origin, one, importer)


# -- files ---------------------------------------------------------------------------------------------


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
    names: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        names |= {line.partition(",")[0].partition("/")[0] for line in lines}
    return frozenset(names)


def file_of(module: str) -> Path | None:
    """The source file of a module of this package or of the user's; None for what has none (a notebook's
    cells) and for what is installed."""
    if is_own(module):
        return _own_file(module.partition(".")[2])
    loaded = sys.modules.get(module)
    if loaded is None:
        spec = _spec(module)
        origin = None if spec is None else spec.origin
    else:
        typed = module == "__main__" and (hasattr(sys, "ps1") or sys.flags.interactive)
        origin = None if typed else getattr(loaded, "__file__", None)
    if not origin or not origin.endswith((".py", *EXTENSION_SUFFIXES)):
        return None
    file = Path(origin).resolve()
    return None if is_installed(file) else file


@functools.cache
def _own_file(rest: str) -> Path | None:
    place = _ROOT.joinpath(*rest.split(".")) if rest else _ROOT
    options = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in options if file.is_file()), None)


def _spec(module: str) -> ModuleSpec | None:
    """Found without importing the packages that a module is in; None inside of installed ones."""
    loaded = sys.modules.get(module)
    try:
        if loaded is not None:
            return loaded.__spec__
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


def _beginning() -> int:
    """When this process began, in ns of the clock of files. Python reads no module in the first 10 ms, which
    are the resolution of the kernel's clock."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) + 1
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):  # no Linux: the import of this module
        age = 0.0
    return time.time_ns() - int(max(0.0, age) * 1e9)


_BEGAN = _beginning()


def unkept(files: set[Path] | frozenset[Path]) -> str:
    """Why the code that runs may not be that of its files; empty where it is."""
    for file in sorted(files):
        try:
            status = file.stat()
        except OSError:
            return f"{file} is gone"
        if max(status.st_mtime_ns, status.st_ctime_ns) > _BEGAN:
            return f"{file} was edited after this process began"
        if _is_stale(file, status):
            return f"Python keeps bytecode of an earlier {file}"
    return ""


def _is_stale(file: Path, status: os.stat_result) -> bool:
    """Whether Python takes cached bytecode for a file's that is of an edit before: it looks at the size and
    the second alone."""
    compiled = Path(importlib.util.cache_from_source(file))
    try:
        if compiled.stat().st_mtime_ns >= status.st_mtime_ns:
            return False
        content = compiled.read_bytes()
    except OSError:
        return False
    stamp = int(status.st_mtime).to_bytes(8, "little")[:4] + status.st_size.to_bytes(8, "little")[:4]
    kind = content[4:8]  # 0: by the stamp, 1: by a hash that nobody compares, 3: by one that is compared
    if kind == b"\3\0\0\0" or (kind == bytes(4) and content[8:16] != stamp):
        return False
    return marshal.loads(content[16:]) != compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


# -- what counts of a source ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=2048)
def _parsed(module: str, is_package: bool, source: bytes) -> dict[str, Any]:
    """`hash` of what counts, `imports` as [module, name or None], `exports`: what the module imports by the
    names that it gives them, and `scans`: whether it imports all modules of its folder by their names."""
    key = f"source {sys.version} {_reader()} {module} {is_package} {hashlib.sha256(source).hexdigest()}"
    if (parsed := recall(key)) is None:
        remember(key, parsed := _parse(module, is_package, source))
    return parsed


@functools.cache
def _reader() -> str:
    """This file's hash: what it remembers of sources depends on it."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _parse(module: str, is_package: bool, source: bytes) -> dict[str, Any]:
    tree = ast.Module([], []) if b"\0" in source else ast.parse(source)  # an extension module
    nodes, exports = [*ast.walk(tree)], {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            exports |= {alias.asname or alias.name: [base, alias.name] for alias in node.names}
    lines = source.splitlines(keepends=True)
    if is_own(module):
        for node in nodes:
            if _builds_nodes(node):
                first, last = node.decorator_list[0].lineno, node.end_lineno or 0
                lines[first - 1 : last] = [b""] * (last - first + 1)
        used = _used(tree)
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                node.names = [one for one in node.names if (one.asname or one.name.partition(".")[0]) in used]
    imported = [list(one) for one in _imported(nodes, module, is_package)]
    return {
        "hash": hashlib.sha256(b"".join(lines)).hexdigest()[:16],
        "imports": imported if is_own(module) else [*imported, *_attributes(tree)],
        "exports": exports,
        "scans": is_package and b"iter_modules" in source,
    }


def _builds_nodes(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and bool(_MARKS & {*map(ast.unparse, node.decorator_list)})


def _used(tree: ast.Module) -> set[str]:
    """The names that are read in a tree, but for those that only annotations or functions that build nodes
    read."""
    names: set[str] = set()
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if _builds_nodes(node):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        skipped = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Callable":  # a type's alias
            skipped.append(node.slice)
        waiting += [one for one in ast.iter_child_nodes(node) if one not in skipped]
    return names


def _imported(nodes: Iterable[ast.AST], module: str, is_package: bool) -> Iterator[tuple[str, str | None]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            yield from ((base, alias.name) for alias in node.names)


def _attributes(tree: ast.AST) -> Iterator[list[str]]:
    """What a module of the user takes from packages of ours by attribute (`index.nearest`), as imports."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {one.asname: one.name for one in node.names if one.asname} | {PACKAGE: PACKAGE}
        elif isinstance(node, ast.ImportFrom) and is_own(node.module or ""):
            bound |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node.value).partition(".")
            base = ".".join(filter(None, [bound.get(first, ""), rest]))
            if is_own(base):
                yield [base, node.attr]


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    parents = parents[: len(parents) - node.level + is_package]
    return ".".join([*parents, *([node.module] if node.module else [])])
