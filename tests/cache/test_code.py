"""The hash of code: what moves it, what does not, and what no other process may find."""

import ast
import importlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pbr_jax
from pbr_jax.cache import sources
from pbr_jax.cache.code import code_of, described
from pbr_jax.config.reading import execute
from pbr_jax.graph import Stage

ROOT = Path(str(pbr_jax.__file__)).parent
Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Writes modules into a folder of the path and imports one of them, as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sources, "_BEGAN", 2**63)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def loaded(module: str, **texts: str) -> Any:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        for name, text in texts.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return importlib.import_module(module)

    yield loaded
    for name in set(sys.modules) - before:
        del sys.modules[name]


# -- the user's modules --------------------------------------------------------------------------------

PACKAGE = {
    "top_of_mine": """
        from child_of_mine import Child
        from user_pkg import deep
        from user_pkg.sub import leaf

        SCALE = 2.0

        def doubled(f):
            return lambda x: 2 * f(x)

        def make(x):
            '''What it does.'''
            from space_of_mine import score
            return score.value * x * SCALE + deep.value() + Child().f()
    """,
    "child_of_mine": "import base_of_mine\nclass Child(base_of_mine.Base):\n    k = 1\n",
    "base_of_mine": "class Base:\n    def f(self):\n        return 1\n",
    "user_pkg/__init__": "from .near import number\n__all__ = ['listed']\n",
    "user_pkg/near": "number = 1\n",
    "user_pkg/deep": "from . import near\nfrom .near import number\ndef value():\n    return near.number\n",
    "space_of_mine/score": "value = 1\n",
    "user_pkg/listed": "number = 1\n",
    "user_pkg/sub/__init__": "number = 1\n",
    "user_pkg/sub/leaf": "from user_pkg import *\n",
}


@pytest.mark.parametrize("module", PACKAGE)
@pytest.mark.parametrize("edit", ["text + 'OTHER = 1\\n'", "text.replace('1', '2').replace('2.0', '3.0')"])
def test_an_edit_of_any_module_that_is_imported_moves_the_key(load: Load, module: str, edit: str):
    first = described(load("top_of_mine", **PACKAGE).make)
    assert described(load("top_of_mine", **PACKAGE).make) == first
    assert not first.unkept
    edited = eval(edit, {"text": textwrap.dedent(PACKAGE[module])})
    if edited != textwrap.dedent(PACKAGE[module]):
        assert code_of(load("top_of_mine", **{**PACKAGE, module: edited}).make) != first.hash


def test_modules_that_are_not_imported_and_installed_ones_do_not_count(load: Load):
    first = code_of(load("top_of_mine", **PACKAGE).make)
    assert code_of(load("top_of_mine", **PACKAGE, beside_of_mine="OTHER = 1\n").make) == first
    made = load("numbers_of_mine", numbers_of_mine="import json\nimport numpy as np\ndef make(): ...\n").make
    assert {file.name for file in described(made).files} == {"numbers_of_mine.py"}


HELD = """
    import functools
    from pbr_jax.methods.retrieve import BM25

    def count(folder, *, sign=1):
        return sign

    def closed(sign):
        def inner(folder):
            return count(folder, sign=sign)
        return inner

    def partial(sign):
        return functools.partial(count, sign=sign)

    def cached(sign):
        return functools.cache(partial(sign).func) if sign > 0 else count

    def bound(sign):
        return BM25(k=abs(sign) + (sign > 0)).slot

    def nested(sign):
        return functools.partial(closed(sign), [{"a": (sign, BM25(k=4))}, None])

    def anonymous(sign):
        return lambda folder: sign

    def defaults(sign):
        def inner(folder, *, sign=sign):
            return sign
        return inner

    def factory(sign):
        class Made:
            def count(self, folder):
                return sign
        return Made

    def typed(sign):
        return type("Typed", (), {"count": closed(sign)})

    class Own:
        pass

    class Told:
        exec("def count(self): pass")

    def unknown(sign):
        return functools.partial(count, sign=object())
"""


@pytest.mark.parametrize("maker", ["closed", "partial", "cached", "bound", "nested", "defaults"])
def test_plain_values_that_code_holds_count(load: Load, maker: str):
    make = getattr(load("held_of_mine", held_of_mine=HELD), maker)
    assert code_of(make(1)) == code_of(make(1)) != code_of(make(-1))
    assert not described(make(1)).unkept


@pytest.mark.parametrize(
    ("maker", "reason"),
    [
        ("anonymous", "held_of_mine.anonymous.<locals>.<lambda> has no name in a file"),
        ("factory", "factory.<locals>.Made is not what held_of_mine has by this name"),
        ("typed", "Typed is not what held_of_mine has by this name"),
        ("unknown", "code holds a object, which nothing tells from another"),
    ],
)
def test_what_nothing_tells_apart_is_not_kept(load: Load, maker: str, reason: str):
    make = getattr(load("held_of_mine", held_of_mine=HELD), maker)
    one = make(1)
    assert described(one).unkept == reason
    assert code_of(one) == code_of(one) != code_of(make(1))


def test_a_method_from_elsewhere_counts_with_its_file_and_one_from_no_file_is_not_kept(load: Load):
    texts = {"held_of_mine": HELD, "patch_of_mine": "def count(self): pass\n"}

    def patched() -> Any:
        module = load("held_of_mine", **texts)
        module.Own.count = importlib.import_module("patch_of_mine").count
        return described(module.Own)

    first = patched()
    texts["patch_of_mine"] += "OTHER = 1\n"
    assert first.hash != patched().hash
    told = described(load("held_of_mine", held_of_mine=HELD).Told)
    assert told.unkept == "held_of_mine.count has no name in a file"


def test_the_same_sources_are_other_code_in_other_places(load: Load):
    """Two modules that change their places, and two classes of one name that share all imports."""
    texts = {"all_of_mine": "from user_pkg import one, two\n", "user_pkg/__init__": ""}
    for name in ("one", "two"):
        texts[f"user_pkg/{name}"] = f"import all_of_mine\nclass Own:\n    name = '{name}'\n"
    one, two = (described(load(f"user_pkg.{name}", **texts).Own) for name in ("one", "two"))
    assert one.hash != two.hash
    texts["user_pkg/one"], texts["user_pkg/two"] = texts["user_pkg/two"], texts["user_pkg/one"]
    assert code_of(load("user_pkg.one", **texts).Own) not in (one.hash, two.hash)


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("from pbr_jax import index", "index.nearest"),
        ("import pbr_jax.index", "pbr_jax.index.nearest"),
        ("import pbr_jax.index as index", "index.nearest"),
        ("from pbr_jax.index import *", "nearest"),
    ],
)
def test_what_a_users_module_takes_from_a_package_of_ours_counts(load: Load, line: str, use: str):
    load("top_of_mine", top_of_mine=f"{line}\ndef make():\n    return {use}\n")
    assert "pbr_jax.index.top_k" in sources.closure("top_of_mine").modules


def test_code_that_was_typed_is_not_kept():
    script = """
    import sys, types
    from pbr_jax.cache.code import described

    class Typed: pass
    module = sys.modules["cells"] = types.ModuleType("cells")
    exec("def make(): pass", vars(module))
    print(described(Typed).unkept, "|", described(module.make).unkept)
    """
    done = subprocess.run(
        [sys.executable, "-"], input=textwrap.dedent(script), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "Typed is in no file | make is in no file"


# -- files that are edited -----------------------------------------------------------------------------


def test_a_file_that_is_newer_than_the_process_or_gone_is_not_what_runs(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = load("top_of_mine", **PACKAGE).make
    monkeypatch.setattr(sources, "_BEGAN", sources._beginning())
    assert "was edited after this process began" in described(made).unkept
    file = tmp_path / "user_pkg" / "near.py"
    assert sources.unkept(frozenset([ROOT / "__init__.py"])) == ""
    file.unlink()
    monkeypatch.setattr(sources, "_BEGAN", 2**63)
    assert described(made).unkept == f"{file} is gone"


def test_an_extension_module_counts_by_its_bytes(load: Load, tmp_path: Path):
    made = load("top_of_mine", top_of_mine="def make():\n    import built_of_mine\n").make
    hashes = set()
    for content in (b"\0", b"\0\0"):
        (tmp_path / f"built_of_mine{EXTENSION_SUFFIXES[-1]}").write_bytes(content)
        importlib.invalidate_caches()
        hashes.add(code_of(made))
    assert len(hashes) == 2


def test_bytecode_of_an_edit_within_one_second_is_not_what_the_file_says(tmp_path: Path):
    """Python takes it for fresh, where the size is the same."""
    import os
    import py_compile

    file = tmp_path / "maker_of_mine.py"
    file.write_text("def make():\n    return 1\n")
    os.utime(file, ns=(0, 1_700_000_000_100_000_000))
    compiled = Path(str(py_compile.compile(str(file))))
    os.utime(compiled, ns=(0, 1_700_000_000_200_000_000))
    assert not sources._is_stale(file, file.stat())
    for text, stale in (("return 2", True), ("return 1", False)):
        file.write_text(f"def make():\n    {text}\n")
        os.utime(file, ns=(0, 1_700_000_000_300_000_000))
        assert sources._is_stale(file, file.stat()) == stale
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    os.utime(compiled, ns=(0, 1_700_000_000_400_000_000))
    for text, stale in (("return 1", False), ("return  3", True)):
        file.write_text(f"def make():\n    {text}\n")
        assert sources._is_stale(file, file.stat()) == stale


def test_a_config_counts_as_it_was_executed(tmp_path: Path):
    """Its first classes stay in use: `open` executes the config of a run."""
    file = tmp_path / "own_config.py"
    file.write_text("SIGN = 1\n\n\nclass Own:\n    def slot(self):\n        return SIGN\n")
    first = execute(file).Own
    before = described(first)
    assert not before.unkept
    assert code_of(execute(file).Own) == before.hash == code_of(first)
    file.write_text(file.read_text().replace("= 1", "= 2"))
    assert code_of(execute(file).Own) != before.hash == code_of(first)


MAKER = """
    import importlib, pathlib

    def make(folder):
        (folder / "value").write_text("made")
        (folder / "part").mkdir()
        if EDIT:
            pathlib.Path(EDIT).write_text("value = 2\\n")

    def load(folder):
        return (folder / "value").read_text()

    def uses():
        import lazy_of_mine

    EDIT = ""
"""


def test_a_result_is_not_kept_where_a_file_is_edited_while_it_is_made(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))

    def stages() -> list[Stage]:
        first = Stage("first", (), {}, module.make, module.load)
        return [first, Stage("last", (), {"need": first}, _joined, _read)]

    module = load("top_of_mine", lazy_of_mine="value = 1\n", top_of_mine=MAKER)
    first, last = stages()
    lazy = tmp_path / "lazy_of_mine.py"
    module.EDIT = str(lazy)
    unkept = "lazy_of_mine.py was edited after this process began"
    monkeypatch.setattr(
        sources, "unkept", lambda files: unkept if "2" in Path(module.EDIT).read_text() else ""
    )
    assert last.value == "made!"
    assert first.is_made
    assert last.is_made
    assert capsys.readouterr().err.count(f"not kept for other runs, because {unkept}") == 1
    assert not [*(tmp_path / "cache").rglob("value")]
    module.EDIT = ""
    monkeypatch.setattr(sources, "unkept", lambda files: "")
    first, last = stages()
    assert not first.is_made
    assert last.value == "made!"
    assert first.was_made
    assert stages()[1].is_made


def _joined(folder: Path, *, need: str) -> None:
    (folder / "value").write_text(f"{need}!")


def _read(folder: Path) -> str:
    return (folder / "value").read_text()


def test_what_is_not_kept_is_made_anew_by_each_node(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    made, unknown = [0], object()

    def make(folder: Path) -> None:
        assert unknown
        made[0] += 1
        (folder / "value").write_text(str(made))

    for _ in range(2):
        stage = Stage("own", (), {}, make, _read)
        assert stage.unkept == "code holds a object, which nothing tells from another"
        assert not stage.is_made
        assert stage.value == str(made)
        assert stage.is_made
    assert made == [2]
    assert not (tmp_path / "cache" / "own").exists()


# -- the package ---------------------------------------------------------------------------------------


def test_modules_that_compute_count_and_others_do_not():
    def counted(module: str) -> set[str]:
        names = sources.closure(f"pbr_jax.methods.{module}").modules
        return {name.rpartition(".")[2] for name in names}

    dense, purple = counted("retrieve.dense"), counted("select.purple")
    assert {"dense", "search", "exact"} <= dense
    assert not {"reranker", "cli", "cross_encoder", "store", "lamp", "files", "graph"} & dense
    assert {"purple_training", "loop", "policy_gradient", "bert"} <= purple
    assert not {"generator", "causal_lm", "client", "codec"} & purple  # its nodes have keys of their own


COUNTED = sorted(
    {name for stage in ("select.purple", "select.distilled", "retrieve.dense")
     for name in sources.closure(f"pbr_jax.methods.{stage}").modules}
)  # fmt: skip


@given(st.data())
def test_an_edit_of_any_line_of_a_counted_module_moves_it_but_of_what_builds_nodes(data: st.DataObject):
    module = data.draw(st.sampled_from(COUNTED))
    file = sources.file_of(module)
    assert file is not None
    text, is_package = file.read_bytes(), file.name == "__init__.py"
    marked: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if sources._builds_nodes(node):
            marked |= {*range(node.decorator_list[0].lineno, (node.end_lineno or 0) + 1)}
    lines = text.splitlines(keepends=True)
    number = data.draw(st.sampled_from(range(len(lines))))
    lines[number] = lines[number].rstrip() + b"  # edited\n"
    try:
        edited = sources._parse(module, is_package, b"".join(lines))["hash"]
    except SyntaxError:  # inside of a text of several lines that continues
        return
    assert (edited == sources._parse(module, is_package, text)["hash"]) == (number + 1 in marked)


@pytest.mark.parametrize(("mark", "moves"), [("", True), ("@builds_nodes\n", False)])
def test_a_function_leaves_the_key_by_its_mark_and_not_by_its_arguments(
    tmp_path: Path, mark: str, moves: bool
):
    shutil.copytree(ROOT, tmp_path / "pbr_jax", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "pbr_jax" / "index" / "exact.py"
    text = file.read_text().replace(
        "\nclass ", f"\n{mark}def scaled(run):\n    return run * 2.0\n\n\nclass ", 1
    )
    script = (
        "from pbr_jax.cache.sources import closure; print(closure('pbr_jax.methods.retrieve.dense').lines)"
    )
    keys = set()
    for factor in ("2.0", "3.0"):
        file.write_text(text.replace("run * 2.0", f"run * {factor}"))
        command = [
            sys.executable,
            "-B",
            "-c",
            script.replace("print(", "print(sorted(").replace("lines)", "lines))"),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={})
        assert done.returncode == 0, done.stderr
        keys.add(done.stdout)
    assert (len(keys) == 2) == moves


def test_what_only_a_marked_function_imports_does_not_count():
    text = b"from pbr_jax.text import bm25\nfrom pbr_jax.index import exact\n"
    text += b"%sdef f(run):\n    return bm25\nX = exact\n"

    def imports(mark: bytes) -> list[str]:
        return [name for _, name in sources._parse("pbr_jax.mine", False, text % mark)["imports"]]

    assert imports(b"") == ["bm25", "exact"]
    assert imports(b"@builds_nodes\n") == imports(b"@once\n") == ["exact"]


def test_what_an_installer_put_somewhere_is_not_looked_at_but_what_lies_beside_it_is(tmp_path, monkeypatch):
    target, site = tmp_path / "target", tmp_path / "lib" / "site-packages"
    for folder in (target, site):
        for package in ("theirs", "mine"):
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").write_text("")
    (target / "theirs-1.dist-info").mkdir()
    (target / "theirs-1.dist-info" / "RECORD").write_text("theirs/__init__.py,,\nsingle.py,,\n")
    monkeypatch.syspath_prepend(str(target))
    for cached in (sources.is_installed, sources._recorded):
        cached.cache_clear()
    assert sources.is_installed(target / "theirs" / "__init__.py")
    assert sources.is_installed(target / "single.py")
    assert not sources.is_installed(target / "mine" / "__init__.py")
    assert sources.is_installed(site / "mine" / "__init__.py")
    assert not sources.is_installed(tmp_path / "theirs" / "__init__.py")
