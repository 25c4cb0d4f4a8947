"""Prose of README and docs is plain: bad sentences are found, and pages hold none."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import prose  # noqa: E402  # pyright: ignore[reportMissingImports]
import tables  # noqa: E402  # pyright: ignore[reportMissingImports]

LONG = " ".join(["so"] * 36)
BAD = {
    f"It is {LONG[:53]}\n{LONG[54:]}.": "38 words",
    "The cache believes that nothing changed.": "people",
    "The retrievers cannot be told apart.": "differ",
    "A run learns nothing without leave.": "set",
    "It holds, as far as can be told, everywhere.": "measured",
    "Whoever asks twice gets the same.": "case",
    "You can simply run it.": "leave the word out",
    "One is this; another is that; a third is none.": "semicolons",
    "It works out of the box.": "figure",
    "Any x " + "y" * 100: "106 characters",
    "- Fine.\n- It seamlessly scales.": "2: 'seamless'",
}
GOOD = [
    "Repeated queries are cached. A run that was killed continues.",
    f"```bash\n{LONG}\n{'x' * 200}\n```",
    f"| table | {LONG} |\n|---|---|\n| {'x' * 200} | |",
    f"# {LONG}",
    f"<!-- {LONG}\nwhoever -->",
    f"See <https://example.org/{'a' * 90}>.",
    "Twenty words are here: " + "a " * 20 + "and `a; b; c; d` is code.",
    f"- {'a ' * 20}\n- {'b ' * 20}\n",
    ":::{note}\nShort.\n:::",
]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_sentence_is_found(text: str) -> None:
    found = prose.faults(text)
    assert len(found) == 1, found
    assert BAD[text] in found[0]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_one_is_not(text: str) -> None:
    assert prose.faults(text) == []


def test_a_fault_has_the_line_of_its_sentence() -> None:
    (found,) = prose.faults(
        "# Title\n\nFine. This is\nfine.\n\n```\nwhoever\n```\n\nSo: the table believes it."
    )
    assert found.startswith("10: ")


def test_directives_hold_prose() -> None:
    assert len(prose.faults(":::{note}\nThe table believes it.\n:::")) == 1


@pytest.mark.parametrize("page", prose.pages(), ids=prose.name_of)
def test_a_page_is_plain_or_on_the_list_of_those_to_be_rewritten(page: Path) -> None:
    found = prose.faults(page.read_text(encoding="utf-8"))
    if prose.name_of(page) in prose.NOT_YET:
        assert found, "the page is plain now; take it off NOT_YET in docs/prose.py"
    else:
        assert not found, "\n".join(found)


def test_the_list_names_pages_that_are_there() -> None:
    assert {prose.name_of(page) for page in prose.pages()} >= prose.NOT_YET


INCLUDE = re.compile(r"^```\{include\} (\S+)\n.*?^```$", re.DOTALL | re.MULTILINE)


def whole(page: Path) -> str:
    """A page with what it includes; results come from docs/results."""

    def included(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        if path.parent != tables.GENERATED:
            return whole(path)
        found = tables.tables()
        return tables.matrix(found) if path.stem == "matrix" else tables.markdown(path.stem, found[path.stem])

    return INCLUDE.sub(included, page.read_text(encoding="utf-8"))


def words(text: str) -> int:
    """Words and numbers; the lines of tables are none."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_words_are_counted_with_what_a_page_includes(tmp_path: Path) -> None:
    (tmp_path / "part.inc").write_text("| a | -0.5 |\n| --- | ---: |\n")
    (tmp_path / "page.md").write_text("# One\n\n```{include} part.inc\n:start-line: 0\n```\n\nTwo three.\n")
    assert words(whole(tmp_path / "page.md")) == 5


@pytest.mark.parametrize("page", prose.pages(), ids=prose.name_of)
def test_pages_are_short(page: Path) -> None:
    """README at most 600 words, a page at most 2,500 with what it includes; the reference is exempt."""
    name = prose.name_of(page)
    if not name.startswith("docs/reference/"):
        assert words(whole(page)) <= (600 if name == "README.md" else 2500)


@pytest.mark.parametrize("page", prose.pages(), ids=prose.name_of)
def test_scripts_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = re.findall(r"benchmarks/\w+\.(?:py|mjs)", text)
    if page.parent.name == "benchmarks":
        names = [f"benchmarks/{name}" for name in re.findall(r"`(\w+\.(?:py|mjs))`", text)]
        assert len(names) > 20
    for name in names:
        assert (ROOT / name).exists(), name


def test_each_benchmark_is_in_the_list_of_benchmarks() -> None:
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    for script in (ROOT / "benchmarks").glob("*.*"):
        assert script.suffix == ".md" or f"`{script.name}`" in text, script.name


def test_notebooks_are_short() -> None:
    """The text of a notebook is a page of the site, too."""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = " ".join("".join(cell["source"]) for cell in cells)
        assert words(text) <= 2500, path.name
