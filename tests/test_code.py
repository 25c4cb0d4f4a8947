"""The hash of code: what moves it, and what does not."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import sources as written
from pbr_jax.code import code_of
from pbr_jax.types import UserError

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
        written._unloaded.clear()
        for cached in (
            written._foreign_file,
            written._content,
            written.closure,
            written._parsed,
            written.is_installed,
        ):
            cached.cache_clear()
        importlib.invalidate_caches()
        return importlib.import_module(module)

    yield loaded
    written._unloaded.clear()
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
            for entry in written.closure(
                cls.__module__, Path(sys.modules[cls.__module__].__file__ or ""), None
            )
        }
        for cls in (Dense, Tuned)
    )
    assert {"dense.py", "search.py", "per_user.py", "encode.py", "bert.py"} <= dense
    assert not {"reranker.py", "cli.py", "cross_encoder.py"} & dense
    assert {"reranker.py", "loop.py", "lessons.py", "distillation.py", "cross_encoder.py"} <= tuned
    assert "numpy" not in " ".join(dense | tuned)


def test_folders_without_init_and_packages_around_a_module_count(load: Load):
    sources = {
        "space_of_mine/score": "value = 1\n",
        "maker_one": "from space_of_mine import score\n\n\ndef make():\n    return score.value\n",
        "pack_of_mine/__init__": "SIGN = 1\n",
        "pack_of_mine/inner": "import pack_of_mine\n",
        "maker_two": "import pack_of_mine.inner as a\n\n\ndef make():\n    return a.pack_of_mine.SIGN\n",
    }
    for maker, edit in (("maker_one", "space_of_mine/score"), ("maker_two", "pack_of_mine/__init__")):
        first = code_of(load(maker, **sources).make)
        assert code_of(load(maker, **{**sources, edit: "SIGN = value = 2\n"}).make) != first


HELD = """
    import functools

    def count(folder, *, sign=1):
        return sign

    def closed(sign):
        return lambda folder: count(folder, sign=sign)

    def partial(sign):
        return functools.partial(count, sign=sign)

    class Own:
        def __init__(self, sign):
            self.sign = sign

        def count(self, folder):
            return self.sign

    def bound(sign):
        return Own(sign).count

    def factory(sign):
        class Made:
            def count(self, folder):
                return sign

        return Made

    def unknown(sign):
        return functools.partial(count, sign=open(__file__))
"""


@pytest.mark.parametrize("maker", ["closed", "partial", "bound", "factory"])
def test_what_code_holds_beside_its_source_counts(load: Load, maker: str):
    make = getattr(load("held_of_mine", held_of_mine=HELD), maker)
    assert code_of(make(1)) == code_of(make(1)) != code_of(make(-1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_nothing_tells_apart_is_refused(load: Load):
    with pytest.raises(UserError, match="code holds a TextIOWrapper, which nothing tells from another"):
        code_of(load("held_of_mine", held_of_mine=HELD).unknown(1))


CELLS = """
import functools
import numpy as np
from beside_of_mine import third
scale = 2
table = {"a": [1, 2], "b": {3}}
weights = np.arange(3)
def half(x):
    return x / scale
pair = (lambda x: x + 1, lambda x: x + 2)
class Base:
    offset = 0
    def both(self, x):
        return half(x) + self.offset
class Method(Base):
    "Told."
    def slot(self, x, *, k=1):
        "Does it."
        return self.both(x) + pair[0](x) + pair[1](x) + table["a"][0] + weights[0] + third(x)
    @property
    def name(self):
        return "n"
"""
EDITS = {
    "scale = 2": "scale = 3", "[1, 2]": "[5, 2]", "{3}": "{4}", "arange(3)": "arange(1, 4)",
    "x / scale": "x * scale", "x + 2": "x + 3", "offset = 0": "offset = 1", "k=1": "k=2",
    "self.both(x)": "-self.both(x)", 'return "n"': 'return "m"',
}  # fmt: skip


def test_code_of_a_notebook_counts_with_all_that_it_names(tmp_path: Path):
    """One process after another, as kernels are; from stdin, where no sources are to be found."""
    (tmp_path / "beside_of_mine.py").write_text("def third(x):\n    return x / 3\n")

    def keys(*cells: str) -> list[str]:
        script = f"""
        import json, sys
        from pbr_jax.code import code_of

        for cells in json.loads({json.dumps(json.dumps(cells))}):
            exec(cells)
            print(code_of(Method))
        """
        done = subprocess.run(
            [sys.executable, "-"], input=textwrap.dedent(script), capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    words = CELLS.replace("Told.", "Said.").replace("Does it.", "It.") + "# a comment\n"
    edited = [CELLS.replace(old, new) for old, new in EDITS.items()]
    assert CELLS not in edited
    found = keys(CELLS, words, *edited)
    assert found[0] == found[1] == keys(CELLS)[0]
    (tmp_path / "beside_of_mine.py").write_text("def third(x):\n    return x / 4\n")
    assert len({*found, *keys(CELLS)}) == len(EDITS) + 2


def test_an_edit_while_something_is_made_is_refused(load: Load, tmp_path: Path):
    sources = {"lazy_of_mine": "value = 1\n", "top_of_mine": "def make():\n    import lazy_of_mine\n"}
    code_of(load("top_of_mine", **sources).make)
    written.refuse_edited("rank")
    (tmp_path / "lazy_of_mine.py").write_text("value = 2\n")
    with pytest.raises(UserError, match=r"lazy_of_mine.py was edited while rank was made, which is not kept"):
        written.refuse_edited("rank")


def test_an_edit_of_the_package_after_it_was_loaded_is_refused(monkeypatch: pytest.MonkeyPatch):
    own = Path(str(sys.modules["pbr_jax.code"].__file__))
    monkeypatch.setitem(written._began, own, (0, 0))
    written._content.cache_clear()
    with pytest.raises(UserError, match=r"code.py was edited after this process had loaded it"):
        written._content(own, "pbr_jax.code")


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


def test_what_an_installer_put_somewhere_is_not_looked_at_but_what_lies_beside_it_is(tmp_path, monkeypatch):
    target, site = tmp_path / "target", tmp_path / "lib" / "site-packages"
    for folder in (target, site):
        for package in ("theirs", "mine"):
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").write_text("")
    (target / "theirs-1.dist-info").mkdir()
    (target / "theirs-1.dist-info" / "RECORD").write_text("theirs/__init__.py,,\nsingle.py,,\n")
    monkeypatch.syspath_prepend(str(target))
    for cached in (written.is_installed, written._recorded):
        cached.cache_clear()
    assert written.is_installed(target / "theirs" / "__init__.py")
    assert written.is_installed(target / "single.py")
    assert not written.is_installed(target / "mine" / "__init__.py")
    assert written.is_installed(site / "mine" / "__init__.py")
    assert not written.is_installed(tmp_path / "theirs" / "__init__.py")


def test_the_package_counts_as_installed_only_where_its_own_installer_put_it(tmp_path, monkeypatch):
    """A copy that lies in a folder of packages can be edited, though another is installed by its name."""
    copy, elsewhere = tmp_path / "site-packages", tmp_path / "elsewhere"
    for folder in (copy, elsewhere):
        (folder / "pbr_jax").mkdir(parents=True)
    monkeypatch.setattr(written, "_ROOT", copy / "pbr_jax")
    for place, told in ((elsewhere, None), (copy, "7")):
        distribution = place / "pbr_jax-7.dist-info"
        distribution.mkdir()
        (distribution / "METADATA").write_text("Name: pbr-jax\nVersion: 7\n")
        found = importlib.metadata.PathDistribution(distribution)
        monkeypatch.setattr(written.metadata, "distribution", lambda name, found=found: found)
        for cached in (written.is_installed, written._version):
            cached.cache_clear()
        assert written._version() == told
        assert written.is_installed(copy / "pbr_jax" / "run.py") == (told is not None)
    written._version.cache_clear()
    written.is_installed.cache_clear()
