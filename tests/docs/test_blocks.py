"""README, start, tutorials, how-to and papers: each command is read, and each block is run, in order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, Block, blocks, commands, read_command, type_command, write_files

from pbr_jax.models import pretrained

sys.path.insert(0, str(ROOT / "docs"))
import prose  # pyright: ignore[reportMissingImports]

PAGES = [
    ROOT / "README.md",
    *(p for f in ("start", "tutorials", "howto", "papers") for p in (ROOT / "docs" / f).glob("*.md")),
]
DONE = sorted(page for page in PAGES if prose.name_of(page) not in prose.NOT_YET)
TYPED = ("bash", "console")
OWN_TESTS = (
    "own_data.md",
    "new_method.md",
    "serve_and_forget.md",
)  # whose blocks build on each other: test_own_data, test_new_method, test_serve_tutorial
SIZES = {
    "clusterrag.md": {"encoder.max_length": "64"},
    "purple.md": {"select.num_heads": "2", "select.query_tokens": "64"},
    "tune_a_reader.md": {"limit_training": "24", "generator.training.epochs": "1"},
}  # of small models, where a page's config asks for more than they have, or trains for long


def names(page: Path) -> str:
    return prose.name_of(page)


@pytest.mark.parametrize("page", DONE, ids=names)
def test_each_block_has_a_language_and_each_mark_a_reason(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0
    for block in blocks(page):
        assert block.language, f"{page}:{block.line}: a block without a language; commands are bash"
        assert not block.mark or len(block.reason) > 5, f"{page}:{block.line}"


@pytest.mark.parametrize("page", DONE, ids=names)
def test_each_command_line_is_one_that_the_program_reads(page: Path) -> None:
    """Also of blocks that are not run: no option is misspelt."""
    for block in blocks(page):
        for command, _ in commands(block.text) if block.language in TYPED else ():
            if "--help" in command or " FOLDER" in command:
                continue
            words = shlex.split(re.split(r" [|>&]( |$)", command)[0])
            if words[0] == "pbr-jax":
                read_command(words[1:])


def test_a_folder_holds_the_same_on_all_pages() -> None:
    """Who reads one page after another types them in one folder, and a run is not written over another."""
    makers: dict[str, str] = {}
    for page in (page for page in DONE if page.name != "own_data.md"):  # which begins in an empty folder
        made: dict[str, str] = {}
        for block in blocks(page):
            for command, _ in commands(block.text) if block.language in TYPED and not block.mark else ():
                for out in re.findall(r"--out (\S+)", command):
                    made.setdefault(out, " ".join(command.split()))
        for out, command in made.items():
            assert makers.setdefault(out, command) == command, f"{page} writes something else to {out}"


def test_a_misspelt_command_is_found() -> None:
    from pbr_jax.base.types import UserError

    for words in (["run", "dense", "--retrive.k", "3"], ["run", "dens"], ["reprt", "runs"]):
        with pytest.raises(UserError):
            read_command(words)


@pytest.fixture
def small_models(tiny_models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Small models under the names of the embedded ones, which Python blocks use too."""
    small = dict(zip(pretrained.EMBEDDED, (tiny_models["encoder.model"], tiny_models["llm.model"])))
    monkeypatch.setattr(pretrained, "_locate_embedded", lambda name, _: Path(small[name]))
    return tiny_models


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in DONE if page.name not in OWN_TESTS], ids=names)
def test_the_blocks_of_a_page_run_in_order(page: Path, here: Path, small_models: dict[str, str]) -> None:
    """Commands with small models and few questions, Python as it stands with small models.

    The notebooks run the same Python with the embedded models.
    """
    write_files(page.read_text(encoding="utf-8"))
    own: dict[str, object] = {"__name__": "__main__"}
    models = small_models | SIZES.get(page.name, {})
    for block in blocks(page):
        if block.mark == "not run" or (block.text.startswith("# ") and ".py\n" in block.text[:40]):
            continue
        try:
            run(block, models, own)
        except BaseException as error:
            error.add_note(f"{prose.name_of(page)}, line {block.line}")
            raise


def run(block: Block, models: dict[str, str], own: dict[str, object]) -> None:
    if block.language == "python":
        exec(compile(block.text, f"line {block.line}", "exec"), own)
    for command, _ in commands(block.text) if block.language in TYPED else ():
        type_command(command, models, dry=block.mark == "only --dry")


# -- the reader of blocks ----------------------------------------------------------------------------------


PAGE = """# A page

<!-- not run here: needs Slurm -->
```bash
sbatch x
```

```bash
pbr-jax configs   # all of them
pbr-jax data \\
  synthetic --out data
```

```console
$ pbr-jax data init x
one
...
```
"""


def test_blocks_marks_and_commands_are_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    first, second, third = blocks(tmp_path / "page.md")
    assert (first.mark, first.reason, first.language, first.line) == ("not run", "needs Slurm", "bash", 4)
    assert [command for command, _ in commands(second.text)] == [
        "pbr-jax configs", "pbr-jax data    synthetic --out data"
    ]  # fmt: skip
    assert list(commands(third.text)) == [("pbr-jax data init x", ["one", "..."])]


def test_a_command_that_fails_fails_the_test(here: Path, tiny_models: dict[str, str]) -> None:
    for command in ("pbr-jax report nothing", "false", "pbr-jax configs | grep nothing_like_this"):
        with pytest.raises((AssertionError, subprocess.CalledProcessError)):
            type_command(command, tiny_models)
    type_command("pbr-jax configs | grep bm25", tiny_models)
