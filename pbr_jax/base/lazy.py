"""The public names of a package, from the stub beside its `__init__.py`; each is imported when first used.

Type checkers and readers of code see the stub's imports. The stub is the only list of the names.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """What a package assigns to `__getattr__`, `__dir__` and `__all__`.

    Args:
      package: its `__name__`.
      file: its `__file__`. Beside it, `__init__.pyi` holds lines such as `from .module import name as name`.
    """
    tree = ast.parse(Path(file).with_name("__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    origins = {
        one.name: "." * node.level + (node.module or one.name) for node in imports for one in node.names
    }

    def load(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(origins[name], package)
        found = module if origins[name] == f".{name}" else getattr(module, name)
        return vars(sys.modules[package]).setdefault(name, found)

    return load, lambda: sorted({*vars(sys.modules[package]), *origins}), sorted(origins)
