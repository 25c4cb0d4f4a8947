"""Sources: the files of modules, what they import, and the hash of what a module runs.

A module counts with every module that it imports, but for those of Python's library and of packages that an
installer put where they are. Of this package, installed or not, a module counts without docstrings,
annotations and texts of errors, without functions marked with `builds_nodes` or `once` (nodes have keys of
their own), and with those imports alone that the rest uses; `counted` names the modules that never count. Of
the user's modules all counts but comments, layout and texts of errors.
"""

import ast
import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.base.file_hashes import remembered
from pbr_jax.cache.counted import stand_in
from pbr_jax.cache.loaded import PACKAGE, file_of, is_own, source_of


class Part(NamedTuple):
    """A module's part of a closure."""

    name: str
    hash: str
    lines: int  # of code that counts


def imports(source: bytes) -> set[str]:
    """The names of the modules and packages that a source imports, parts of packages left out."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    return {base.partition(".")[0] for base, _ in _imported(tree, "", False) if base}


def closure(*modules: str) -> list[str]:
    """What stands for the code of modules and of all that they import, a line each, sorted."""
    found = {line for module in modules for line in (_own if is_own(module) else _closure)(module)[0]}
    return sorted(found)


def counted(module: str) -> list[Part]:
    """The modules whose source counts for code of a module of this package."""
    return sorted(_own(module)[1])


def _closure(root: str) -> tuple[frozenset[str], tuple[Part, ...]]:
    lines: set[str] = set()
    parts: list[Part] = []
    seen: set[str] = set()
    waiting = [root]
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
        content = _parsed(module, file.name == "__init__.py", source_of(module))
        name = module if is_own(module) else file.name  # the module of a config is named by its place
        lines.add(f"{name} {content['hash']}")
        parts.append(Part(name, content["hash"], content["lines"]))
        for base, imported in content["imports"]:
            if is_own(base) or not is_own(module):
                waiting += _modules(base, imported, module)
    return frozenset(lines), tuple(parts)


_own = functools.cache(_closure)  # no module of this package changes while a process runs


def _modules(base: str, name: str | None, importer: str) -> Iterator[str]:
    """The modules that an import runs: `from a import b` is a.b where that is a module, and a.

    The packages of this package only gather names: of them counts the module that defines the name.
    """
    if not is_own(base):
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
    exported = _parsed(module, True, source_of(module))["exports"] if file.name == "__init__.py" else {}
    if module == base and name in exported:
        origin, one = exported[name]
        yield from _modules(origin, one, importer)
        return
    yield module
    if exported and module != base and is_own(importer):  # the package as an object: all that it gathers
        for origin, one in exported.values():
            yield from _modules(origin, one, importer)


def memos(module: str) -> list[str]:
    """The names of a module that are empty containers until its functions fill them."""
    return _parsed(module, False, source_of(module))["memos"]


# -- what counts of a source ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=2048)
def _parsed(module: str, is_package: bool, source: bytes) -> dict[str, Any]:
    """`hash` and `lines` of what counts, `imports` as [module, name or None], and `exports`: what the module
    imports by the names that it gives them."""
    key = f"source {sys.version} {_reader()} {module} {is_package} {hashlib.sha256(source).hexdigest()}"
    return remembered(key, lambda: _parse(module, is_package, source))


@functools.cache
def _reader() -> str:
    """This file's hash: what it remembers of sources depends on it."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _parse(module: str, is_package: bool, source: bytes) -> dict[str, Any]:
    tree = ast.parse(source)
    exports = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            exports |= {alias.asname or alias.name: [base, alias.name] for alias in node.names}
    tree = _Mute().visit(tree)
    if is_own(module):
        tree = _Own().visit(tree)
        used = _used(tree)
        tree.body = [node for node in tree.body if not _is_unused(node, used)]
    counting = {getattr(node, "lineno", 0) for node in ast.walk(tree)} - {0}
    return {
        "hash": hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16],
        "lines": len(counting),
        "imports": [list(one) for one in _imported(tree, module, is_package)],
        "exports": exports,
        "memos": _memos(tree),
    }


def _imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, str | None]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            yield from ((base, alias.name) for alias in node.names)


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    parents = parents[: len(parents) - node.level + is_package]
    return ".".join([*parents, *([node.module] if node.module else [])])


_EMPTY = ("{}", "[]", "set()", "dict()", "list()")
_INNER = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _memos(tree: ast.Module) -> list[str]:
    outside = [node for node in tree.body if not isinstance(node, _INNER)]
    mentioned = Counter(one.id for node in outside for one in ast.walk(node) if isinstance(one, ast.Name))
    found = []
    for node in outside:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and ast.unparse(node.value) in _EMPTY:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [one.id for one in targets if isinstance(one, ast.Name) and mentioned[one.id] == 1]
    return found


class _Mute(ast.NodeTransformer):
    """Takes out the texts of errors."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return _Silence().visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)


class _Silence(ast.NodeTransformer):
    """Empties texts, with what stands inside of them."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")


_MARKS = {"builds_nodes", "once"}  # of `graph` and `stages.run`
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Own(ast.NodeTransformer):
    """Takes out of our own modules what computes nothing."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _Function) and _MARKS & {*map(ast.unparse, node.decorator_list)}:
            return None
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        if isinstance(node, _Function):
            node.returns = None
            for argument in _arguments(node):
                argument.annotation = None
        if isinstance(node, ast.Module | ast.ClassDef):  # texts under a name that document it
            node.body = [one for one in node.body if not _is_text(one)]
        return self.generic_visit(node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _arguments(node: Any) -> list[ast.arg]:
    every = node.args
    rest = [one for one in (every.vararg, every.kwarg) if one is not None]
    return [*every.posonlyargs, *every.args, *every.kwonlyargs, *rest]


def _used(tree: ast.Module) -> set[str]:
    """The names that are read in a tree, but for those in annotations and in aliases of callables' types."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == "Callable"
        ):
            continue
        skipped = node.annotation if isinstance(node, ast.AnnAssign) else None
        waiting += [one for one in ast.iter_child_nodes(node) if one is not skipped]
    return found


def _is_unused(node: ast.stmt, used: set[str]) -> bool:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return False
    node.names = [one for one in node.names if (one.asname or one.name.partition(".")[0]) in used]
    return not node.names
