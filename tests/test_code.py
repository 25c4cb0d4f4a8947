"""The hash of code: what moves it, and what does not."""

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import code
from pbr_jax.code import code_of

Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Writes modules into a folder of the path and imports one of them, as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def loaded(module: str, **sources: str) -> Any:
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
                sys.modules[name].__file__
            ):
                del sys.modules[name]
        for name, source in sources.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(source))
        for cached in (code._foreign_file, code._content, code._closure, code._parsed, code._is_installed):
            cached.cache_clear()
        importlib.invalidate_caches()
        return importlib.import_module(module)

    yield loaded
    for name in set(sys.modules) - before:
        del sys.modules[name]


BASE = '''
    """A module."""
    import helper_of_mine


    def make(x):
        """What it does."""
        return helper_of_mine.half(x) + 1  # one
'''
HELPER = "def half(x):\n    return x / 2\n"


@pytest.mark.parametrize(
    ("maker", "helper", "same"),
    [
        (BASE.replace("# one", "# another word").replace("What it does.", "Told otherwise."), HELPER, True),
        (BASE.replace("return helper", "return  helper").replace("+ 1", "+ (1)"), HELPER, True),
        (BASE.replace('"""A module."""', ""), "# new\n" + HELPER, True),
        (BASE.replace("+ 1", "- 1"), HELPER, False),
        (BASE, HELPER.replace("/ 2", "/ 3"), False),
        (BASE + "\n    OTHER = 3\n", HELPER, False),
        (BASE.replace("import helper_of_mine", "import helper_of_mine, json"), HELPER, False),
    ],
)
def test_what_computes_moves_it_and_words_do_not(load: Load, maker: str, helper: str, same: bool):
    first = code_of(load("maker_of_mine", maker_of_mine=BASE, helper_of_mine=HELPER).make)
    second = code_of(load("maker_of_mine", maker_of_mine=maker, helper_of_mine=helper).make)
    assert (first == second) == same


def test_imports_inside_functions_packages_and_chains_count(load: Load):
    sources = {
        "user_pkg/__init__": "",
        "user_pkg/deep": "from user_pkg.deeper import value\n",
        "user_pkg/deeper": "value = 1\n",
        "top_of_mine": "def make():\n    from user_pkg import deep\n    return deep.value\n",
    }
    first = code_of(load("top_of_mine", **sources).make)
    assert code_of(load("top_of_mine", **sources).make) == first
    assert code_of(load("top_of_mine", **{**sources, "user_pkg/deeper": "value = 2\n"}).make) != first


def test_relative_imports_count(load: Load):
    sources = {
        "rel_pkg/__init__": "from .near import number\n",
        "rel_pkg/near": "number = 1\n",
        "rel_pkg/made": "from . import near\n\n\ndef make():\n    return near.number\n",
    }
    first = code_of(load("rel_pkg.made", **sources).make)
    assert code_of(load("rel_pkg.made", **{**sources, "rel_pkg/near": "number = 2\n"}).make) != first


def test_a_class_counts_with_its_bases(load: Load):
    sources = {
        "base_of_mine": "class Base:\n    def f(self):\n        return 1\n",
        "child_of_mine": "import base_of_mine\n\n\nclass Child(base_of_mine.Base):\n    pass\n",
    }
    first = code_of(load("child_of_mine", **sources).Child)
    changed = {**sources, "base_of_mine": sources["base_of_mine"].replace("1", "2")}
    assert code_of(load("child_of_mine", **changed).Child) != first


def test_the_packages_own_modules_are_followed_and_installed_ones_are_not():
    from pbr_jax.methods.retrieve import Dense
    from pbr_jax.methods.select import Tuned

    dense, tuned = (
        {
            entry.split()[0]
            for entry in code._closure(cls.__module__, Path(sys.modules[cls.__module__].__file__ or ""), None)
        }
        for cls in (Dense, Tuned)
    )
    assert {"dense.py", "search.py", "per_user.py", "encode.py", "bert.py"} <= dense
    assert not {"reranker.py", "cli.py", "cross_encoder.py"} & dense
    assert {"reranker.py", "loop.py", "lessons.py", "distillation.py", "cross_encoder.py"} <= tuned
    assert "numpy" not in " ".join(dense | tuned)


def test_code_without_a_file_counts_by_what_it_names():
    script = """
    import linecache, sys, types
    from pbr_jax.code import code_of

    def cells(text, number):  # as a notebook runs them
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        module = sys.modules["cells"] = types.ModuleType("cells")
        exec(compile(text, name, "exec"), module.__dict__)
        return code_of(module.make)

    base = "scale = 2\\ndef half(x):\\n    return x / scale\\ndef make():\\n    return half(1)\\n"
    texts = [base, base.replace("half(1)", "half(1)  # one"), base.replace("half(1)", "half(3)"),
             base.replace("x / scale", "x * scale"), base.replace("scale = 2", "scale = 3")]
    keys = [cells(text, number) for number, text in enumerate(texts)]
    assert keys[0] == keys[1], keys
    assert len(set(keys)) == 4, keys
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
