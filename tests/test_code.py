"""The hash of code: what moves it, and what does not."""

import importlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.cache import loaded, sources
from pbr_jax.cache.code import code_of
from pbr_jax.config.reading import execute
from pbr_jax.graph import Stage

Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Writes modules into a folder of the path and imports one of them, as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def loaded(module: str, **sources: str) -> Any:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        for name, source in sources.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return importlib.import_module(module)

    yield loaded
    for name in set(sys.modules) - before:
        del sys.modules[name]


RAISING = """
    import helper_of_mine

    def make(x):
        assert x, "{}"
        if x < 0:
            raise ValueError(f"{} {{x!r}}")
        return helper_of_mine.half(x)
"""
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
        (BASE.replace("# one", "# another word"), HELPER, True),
        (BASE.replace("What it does.", "Told otherwise."), HELPER, False),
        (BASE.replace("return helper", "return  helper").replace("+ 1", "+ (1)"), HELPER, True),
        (BASE, "# new\n" + HELPER, True),
        (BASE.replace("A module.", "Another."), HELPER, False),
        (RAISING.format("wrong", "never"), HELPER, True),
        (BASE.replace("+ 1", "- 1"), HELPER, False),
        (BASE, HELPER.replace("/ 2", "/ 3"), False),
        (BASE + "\n    OTHER = 3\n", HELPER, False),
        (BASE.replace("import helper_of_mine", "import helper_of_mine, json"), HELPER, False),
    ],
)
def test_what_computes_moves_it_and_words_do_not(load: Load, maker: str, helper: str, same: bool):
    base = RAISING.format("bad", "x is") if "assert" in maker else BASE
    first = code_of(load("maker_of_mine", maker_of_mine=base, helper_of_mine=HELPER).make)
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


def test_modules_that_compute_count_and_others_do_not():
    def counted(module: str) -> set[str]:
        return {part.name.rpartition(".")[2] for part in sources.counted(f"pbr_jax.methods.{module}")}

    dense, tuned = counted("retrieve.dense"), counted("select.tuned")
    assert {"dense", "search", "per_user"} <= dense
    assert not {"reranker", "cli", "cross_encoder", "store", "lamp", "files", "graph"} & dense
    assert {"reranker", "loop", "distillation", "cross_encoder"} <= tuned
    assert not {"generator", "causal_lm", "client", "codec"} & tuned  # its nodes have keys of their own


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
    "self.both(x)": "-self.both(x)", "Told.": "Said.", "Does it.": "It.", 'return "n"': 'return "m"',
}  # fmt: skip


def test_code_of_a_notebook_counts_with_all_that_it_names(tmp_path: Path):
    """One process after another, as kernels are; from stdin, where no sources are to be found."""
    (tmp_path / "beside_of_mine.py").write_text("def third(x):\n    return x / 3\n")

    def keys(*cells: str) -> list[str]:
        script = f"""
        import json, sys
        from pbr_jax.cache.code import code_of

        for cells in json.loads({json.dumps(json.dumps(cells))}):
            exec(cells)
            print(code_of(Method))
        """
        done = subprocess.run(
            [sys.executable, "-"], input=textwrap.dedent(script), capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    words = CELLS.replace("\n", "  # a comment\n")
    edited = [CELLS.replace(old, new) for old, new in EDITS.items()]
    assert CELLS not in edited
    found = keys(CELLS, words, *edited)
    assert found[0] == found[1] == keys(CELLS)[0]
    (tmp_path / "beside_of_mine.py").write_text("def third(x):\n    return x / 4\n")
    assert len({*found, *keys(CELLS)}) == len(EDITS) + 2


def test_a_module_counts_as_it_was_loaded_whatever_its_file_says(load: Load, tmp_path: Path):
    sources = {"maker_of_mine": BASE, "helper_of_mine": HELPER}
    module = load("maker_of_mine", **sources)
    first = code_of(module.make)
    (tmp_path / "helper_of_mine.py").write_text(HELPER.replace("/ 2", "/ 3"))
    assert code_of(module.make) == first
    importlib.reload(sys.modules["helper_of_mine"])
    assert code_of(module.make) != first
    load("maker_of_mine", **sources)
    assert code_of(sys.modules["maker_of_mine"].make) == first


HELD_FROM = """
    from helper_of_mine import half

    def make(x):
        return half(x)
"""


def test_a_function_of_before_a_reload_is_another_than_the_one_after(load: Load, tmp_path: Path):
    module = load("maker_of_mine", maker_of_mine=HELD_FROM, helper_of_mine=HELPER)
    first = code_of(module.make)
    (tmp_path / "helper_of_mine.py").write_text(HELPER.replace("/ 2", "/ 3"))
    importlib.reload(sys.modules["helper_of_mine"])
    stale = code_of(module.make)
    importlib.reload(module)
    assert len({first, stale, code_of(module.make)}) == 3


def test_values_count_that_a_module_reads_when_it_is_imported_or_that_are_set_later(
    load: Load, tmp_path: Path
):
    rule, maker = tmp_path / "rule.json", """
        import json
        from pathlib import Path

        RULE = json.loads((Path(__file__).parent / "rule.json").read_text())
        KNOWN = {}

        def make(x):
            return KNOWN.setdefault(x, RULE["sign"] * x)
    """  # fmt: skip
    rule.write_text('{"sign": 1}')
    module = load("maker_of_mine", maker_of_mine=maker)
    first = code_of(module.make)
    module.make(3)
    assert code_of(module.make) == first  # what a function fills is no rule
    module.RULE["sign"] = -1
    changed = code_of(module.make)
    rule.write_text('{"sign": -1}')
    assert first != changed == code_of(load("maker_of_mine", maker_of_mine=maker).make)


CONTAINERS = """
import functools, json, types
from collections import OrderedDict, defaultdict, deque
import numpy as np
def rule(x):
    return SIGN * x
class Rules(dict):
    pass
class Kind(type):
    def sign(cls):
        return SIGN
class Own(metaclass=Kind):
    pass
def make(x):
    return HELD
"""
HOLDERS = [
    "types.SimpleNamespace(rule=rule)", "np.vectorize(rule)", "np.array([rule, None], object)",
    "deque([rule])",
    "defaultdict(lambda: SIGN)", "Rules(a=SIGN)", "Own", "[('a', OrderedDict(a=rule))]",
    "dict([('a', 1), ('b', -1)][::SIGN])", "functools.singledispatch(rule)",
]  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_containers_of_a_library_hold_counts(holder: str):
    def key(sign: int) -> str:
        space: dict[str, Any] = {"__name__": "cells_of_mine", "SIGN": sign}
        exec(CONTAINERS, space)
        space["HELD"] = eval(holder, space)
        return code_of(space["make"])

    assert key(1) == key(1) != key(-1)


def test_attributes_of_an_own_container_count():
    def key(sign: int) -> str:
        space: dict[str, Any] = {"__name__": "cells_of_mine", "SIGN": 1}
        exec(CONTAINERS, space)
        space["HELD"] = space["Rules"](a=1)
        space["HELD"].sign = sign
        return code_of(space["make"])

    assert key(1) == key(1) != key(-1)


def test_a_container_counts_that_a_module_fills_when_it_is_imported(load: Load, tmp_path: Path):
    maker = "import json, pathlib\nRULES = {}\ndef read():\n    RULES.update(json.loads(PLACE.read_text()))\n"
    maker += "PLACE = pathlib.Path(__file__).with_name('rules.json')\nread()\n"
    maker += "def make(x):\n    return RULES['sign'] * x\n"

    def key(sign: int) -> str:
        (tmp_path / "rules.json").write_text(json.dumps({"sign": sign}))
        return code_of(load("maker_of_mine", maker_of_mine=maker).make)

    assert key(1) == key(1) != key(-1)


SETS = """
    import functools
    from types import SimpleNamespace
    from pbr_jax.cache.code import code_of

    STOP = SimpleNamespace(words={"the", "a", "and", "of"}, more=frozenset(["x", "y", "z"]))
    def half(x): return x in STOP.words
    print(code_of(half))
    @functools.singledispatch
    def one(x): return 1
    def make(x): return one(x)
    before = code_of(make)
    make("a")
    print(before == code_of(make))
"""


def test_keys_do_not_move_by_the_order_of_a_set_or_by_use():
    def told(seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-"]
        done = subprocess.run(
            command, input=textwrap.dedent(SETS), capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, used = told("1")
    assert [first, "True"] == told("2") == told("3")
    assert used == "True"


def test_a_config_that_is_executed_again_has_the_same_classes(tmp_path: Path):
    """Its first ones stay in use: `open` executes the config of a run."""
    file = tmp_path / "own_config.py"
    file.write_text("SIGN = 1\n\n\nclass Own:\n    def slot(self):\n        return SIGN\n")
    first = execute(file).Own
    before = code_of(first)
    assert code_of(execute(file).Own) == before == code_of(first)
    file.write_text(file.read_text().replace("= 1", "= 2"))
    assert code_of(execute(file).Own) != before


def test_stale_bytecode_is_not_run(load: Load, tmp_path: Path):
    """Python takes it for fresh where an edit keeps size and second."""
    import os
    import py_compile

    file = tmp_path / "maker_of_mine.py"
    file.write_text("def make():\n    return 1\n")
    py_compile.compile(str(file))
    before = file.stat()
    file.write_text("def make():\n    return 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load("maker_of_mine").make() == 2


@pytest.mark.parametrize("is_loaded", [False, True])
def test_an_edit_while_something_is_made_is_refused_and_nothing_of_it_is_gone_on_from(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_loaded: bool
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    maker = """
        import importlib

        EDITED = False

        def make(folder):
            lazy = importlib.import_module("lazy_of_mine")
            lazy = importlib.reload(lazy) if EDITED else lazy
            value = folder / "value"  # goes on from what is there
            value.write_text(value.read_text() if value.exists() else str(lazy.value))

        def read(folder):
            return (folder / "value").read_text()

        def uses():
            import lazy_of_mine
    """

    def stage(edited: bool) -> Stage:
        module = load("top_of_mine", lazy_of_mine="value = 1\n", top_of_mine=maker)
        if is_loaded:
            importlib.import_module("lazy_of_mine")
        made = Stage("own", (), {}, module.make, module.read)
        assert made.key
        module.EDITED = edited and is_loaded
        if edited:
            (tmp_path / "lazy_of_mine.py").write_text("value = 2\n")
        return made

    with pytest.raises(UserError, match=r"lazy_of_mine.py: edited (while own was made, which|after a key)"):
        _ = stage(edited=True).value
    assert stage(edited=False).value == "1"


def test_an_edit_of_the_package_after_the_process_began_is_refused(monkeypatch: pytest.MonkeyPatch):
    own = Path(str(sys.modules["pbr_jax.cache.code"].__file__))
    monkeypatch.setitem(loaded._began, own, (0, 0, 0))
    loaded._own_source.cache_clear()
    with pytest.raises(UserError, match=r"code.py was edited after this process began"):
        loaded.source_of("pbr_jax.cache.code")


def test_code_without_a_file_counts_by_what_it_names():
    script = """
    import linecache, sys, types
    from pbr_jax.cache.code import code_of

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
    for cached in (loaded.is_installed, loaded._recorded):
        cached.cache_clear()
    assert loaded.is_installed(target / "theirs" / "__init__.py")
    assert loaded.is_installed(target / "single.py")
    assert not loaded.is_installed(target / "mine" / "__init__.py")
    assert loaded.is_installed(site / "mine" / "__init__.py")
    assert not loaded.is_installed(tmp_path / "theirs" / "__init__.py")
