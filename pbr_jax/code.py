"""What code computes, as a hash: so that an edit of a function never returns what the old one computed.

The code of a function is that of its module and of every module that it imports, as far as these are being
worked on: an installed pbr_jax is known by its version, the Python library and other installed packages are
not looked at. What counts is the syntax tree without docstrings, so comments, layout and documentation move
no key.

The price: in a checkout an edit of a module that everything imports, such as `types`, makes everything
anew (answers of language models are kept apart, and stay). What is reached by name at run time (`getattr`,
`importlib`) is not seen. A file counts as it was when the process first looked at it.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_ROOT = Path(__file__).resolve().parent
_INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NOWHERE = ("builtins", "abc", "typing")


def code_of(made: Any) -> str:
    """The hash of the code behind a function, a method or a class, its bases included; sixteen hex digits."""
    while isinstance(made, functools.partial):
        made = made.func
    made = getattr(made, "__func__", made)
    found: set[str] = set()
    for part in made.__mro__ if isinstance(made, type) else (made,):
        if part.__module__ in _NOWHERE:
            continue
        name = part.__module__
        file = _file(name)
        found |= {_spoken(part)} if file is None else _closure(name, file, _source(name))
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]


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
def _closure(module: str, file: Path, source: bytes | None) -> frozenset[str]:
    """The hashes of a module and of all that it imports; `source`: what was run in place of its file."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting: list[tuple[str, Path]] = [(module, file)]
    while waiting:
        name, path = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if _is_installed(path):
            found |= {_version()} if name.partition(".")[0] == _PACKAGE else set()
            continue
        text = source if name == module and source is not None else _source(name) or _content(path)
        value, imported = _parsed(name, path.name == "__init__.py", text)
        found.add(f"{path.name} {value}")
        waiting += [(other, own) for other in imported if (own := _file(other)) is not None]
    return frozenset(found)


@functools.cache
def _version() -> str:
    return f"{_PACKAGE} {metadata.version('pbr-jax')}"


@functools.cache
def _is_installed(file: Path) -> bool:
    return any(folder in file.parents for folder in _INSTALLED)


def _file(module: str) -> Path | None:
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
    """Found without importing an installed package's parts."""
    top = module.partition(".")[0]
    if top != module and ((own := _foreign_file(top)) is None or _is_installed(own)):
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


def _source(module: str) -> bytes | None:
    """What was run of a config file and of what lies beside it, whatever has come there since."""
    kept = getattr(sys.modules.get(module), "__source__", None)
    return kept if isinstance(kept, bytes) else None


@functools.cache
def _content(file: Path) -> bytes:
    return file.read_bytes()


@functools.lru_cache(maxsize=2048)
def _parsed(module: str, is_package: bool, source: bytes) -> tuple[str, tuple[str, ...]]:
    """The hash of a source's syntax tree, and the modules that it imports."""
    tree = ast.parse(source)
    value, imports = _hash(tree)
    return value, tuple(dict.fromkeys(name for node in imports for name in _names(node, module, is_package)))


def _hash(tree: ast.Module) -> tuple[str, list[ast.Import | ast.ImportFrom]]:
    """The hash of a tree without its docstrings, and the imports in it."""
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16], imports


def _names(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> Iterator[str]:
    """The modules of an import: `from a import b` is a.b where that is a module, else a."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = _absolute(node, module, is_package)
    package = _file(base)
    inside = package is not None and package.name == "__init__.py" and not _is_installed(package)
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if inside and _file(inner) is not None else base


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    parents = parents[: len(parents) - node.level + is_package]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _spoken(made: Any) -> str:
    """The hash of a function or class without a file (a notebook's), and of what it names beside it."""
    seen: dict[str, str] = {}
    space = vars(sys.modules[made.__module__]) if made.__module__ in sys.modules else {}

    def visit(part: Any) -> None:
        if part.__qualname__ in seen:
            return
        tree = _tree(part)
        seen[part.__qualname__] = repr(getattr(part, "__code__", part)) if tree is None else _hash(tree)[0]
        for node in ast.walk(tree) if tree is not None else ():
            other = space.get(node.id) if isinstance(node, ast.Name) else None
            if isinstance(other, types.FunctionType | type) and other.__module__ == made.__module__:
                visit(other)
            elif isinstance(node, ast.Name) and isinstance(other, int | float | str | bytes | tuple):
                seen[node.id] = repr(other)

    visit(made)
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()[:16]


def _tree(part: Any) -> ast.Module | None:
    try:
        return ast.parse(inspect.cleandoc("\n" + inspect.getsource(part)))
    except (OSError, TypeError, SyntaxError):
        return None
