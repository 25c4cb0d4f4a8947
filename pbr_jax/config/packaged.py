"""The configs that come with the package, known by their names: `dense`, `ablations/cfrag_modules`."""

import ast
import difflib
from pathlib import Path

from pbr_jax.base.types import UserError

_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Where they lie: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def listed() -> dict[str, str]:
    """The first line of each config's docstring, by name; nothing is run."""
    descriptions = {}
    for path in sorted(folder().rglob("*.py"), key=lambda p: (len(p.parts), p)):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        descriptions[path.relative_to(folder()).with_suffix("").as_posix()] = text.partition("\n")[0]
    return descriptions


def found(name: str) -> Path:
    """The file of a config: a path that is there, or the name of a packaged one."""
    path = Path(name)
    if path.is_file() or name.endswith(".py"):
        packaged = folder().parent / path  # `configs/dense.py` where no such file is
        return (
            path if path.is_file() or not (name.startswith("configs/") and packaged.is_file()) else packaged
        )
    inside = folder() / f"{name}.py"
    if inside.is_file() and folder() in inside.resolve().parents:
        return inside
    near = difflib.get_close_matches(name, listed(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "pbr-jax configs lists what there is"
    raise UserError(f"there is no config {name!r}, neither a file nor one of the package's; {hint}")
