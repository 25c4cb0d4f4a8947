"""docs/tutorials/own_data.md: what it shows is typed in an empty folder, and prints what the page says."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doc_blocks import commands, matches, write_files

from pbr_jax.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own_data.md"
SMALL = ("--generate.max_new_tokens=2", "--eval.resamples=20", "--limit=8")
TICKETS, MAIL, TABLES = "Tickets", "Mail", "Documents in a table of their own"
DATA = {MAIL: "realtalk", TABLES: "LaMP_4_huffpost"}


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return found


def typed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a section, and the lines that are shown under it."""
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        yield from commands(block)


Type = Callable[[str], str]


@pytest.fixture
def typing(here: Path, tiny_models: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Type:
    """Types a command; those that load models get small ones, and little to do."""
    models = [f"--{name}={value}" for name, value in tiny_models.items()]

    def run(command: str) -> str:
        program, *words = shlex.split(command)
        capfd.readouterr()
        if program == "pbr-jax":
            assert main([*words, *([*models, *SMALL] if words[0] in ("run", "check") else [])]) == 0
            return capfd.readouterr().out
        program = sys.executable if program == "python" else program
        return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout

    return run


def needs_models(command: str) -> bool:
    return re.match(r"pbr-jax (run|check|report|examples|show)|python compare", command) is not None


@pytest.mark.long
@pytest.mark.parametrize("title", [TICKETS, MAIL, TABLES])
def test_what_the_page_imports_prints_what_it_shows(
    title: str, here: Path, typing: Type, request: pytest.FixtureRequest
) -> None:
    _place(title, request)
    write_files(section(title))
    for command, shown in typed(section(title)):
        if not needs_models(command):
            assert matches(shown, typing(command)), command


@pytest.mark.long
@pytest.mark.parametrize("title", [TICKETS, MAIL, TABLES])
def test_the_whole_page(title: str, here: Path, typing: Type, request: pytest.FixtureRequest) -> None:
    """With small models, so that only the numbers of models differ from the page's."""
    _place(title, request)
    write_files(section(title))
    for command, shown in typed(section(title)):
        printed = typing(command)
        if not needs_models(command):
            assert matches(shown, printed), command
        if command == "python compare.py":
            assert printed.startswith("8 questions, 8 with the same documents, largest difference of")
            assert float(printed.split()[-1]) <= 1e-6
        for out in re.findall(r"--out (\S+)", command):
            assert Path(out).exists()


def _place(title: str, request: pytest.FixtureRequest) -> None:
    """What the user has lying in the folder."""
    if title in DATA:
        shutil.copytree(request.getfixturevalue("real_data") / DATA[title], DATA[title])
