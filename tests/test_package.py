"""The package as a whole: what importing it costs, and what it never needs."""

import ast
import doctest
import importlib
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.methods.select.behind import scaled

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "pbr_jax").rglob("*.py"))
MOST_LINES = 59_051  # of the package; it may fall, and rise only in a change that says why
ABSENT = (
    "torch",
    "tensorflow",
    "scann",
    "lancedb",
    "matplotlib",
    "pyarrow",
    "sklearn",
    "sentence_transformers",
    "pandas",
    "fastapi",
    "uvicorn",
    "mcp",
)
DATA = ("tensorflow_datasets", "grain", "array_record", "importlib_resources")
HEAVY = (*ABSENT, *DATA, "transformers", "bm25s", "rouge_score", "nltk", "gguf", "scipy", "optax", "orbax")


def loaded(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded("import pbr_jax") & {*HEAVY, "jax", "numpy"}


@pytest.mark.parametrize("words", [["configs"], ["--help"], ["report", "--help"], ["check", "--help"]])
def test_what_only_lists_imports_nothing_that_computes(words: list[str]):
    call = f"from pbr_jax.cli.main import main\ntry: main({words})\nexcept SystemExit: pass"
    assert "pbr_jax" in (names := loaded(call))
    assert not names & {*HEAVY, "jax", "flax", "pydantic", "rich"}


def test_every_module_imports_without_optional_and_test_packages():
    code = f"""
import sys
for name in {(*ABSENT, *DATA)!r}:
    sys.modules[name] = None
import importlib, pkgutil, pbr_jax
found = list(pkgutil.walk_packages(pbr_jax.__path__, "pbr_jax."))
for module in found:
    importlib.import_module(module.name)
print(len(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if " >>> " in path.read_text(encoding="utf-8")], ids=lambda p: p.stem
)
def test_the_examples_of_docstrings_hold(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert doctest.testmod(importlib.import_module(module.removesuffix(".__init__"))).failed == 0


def test_type_checks_leave_the_global_generator_alone() -> None:
    before = random.getstate()
    assert scaled(np.ones(3)).tolist() == [1, 1, 1]
    assert random.getstate() == before


def test_the_package_stays_small_and_every_module_has_a_room() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES)
    assert lines <= MOST_LINES
    top = [path for path in SOURCES if path.parent == ROOT / "pbr_jax"]
    assert len(top) <= 8
    rooms = {path.relative_to(ROOT / "pbr_jax").parts[0] for path in SOURCES}
    assert len(rooms) <= 40
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert len(next(one["layers"] for one in contracts if one["type"] == "layers")) <= 19


def test_no_file_and_no_function_is_long() -> None:
    long = []
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        long += [f"{path}: {count} lines" for count in [len(source.splitlines())] if count > 600]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                count = node.end_lineno - node.lineno + 1
                long += [f"{path}:{node.lineno} {node.name}: {count} lines"] if count > 60 else []
    assert not long
