"""Prose of README and docs is plain: bad sentences are found, and pages hold none."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import prose  # noqa: E402  # pyright: ignore[reportMissingImports]

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


def test_pages_are_short() -> None:
    """README under 700 words; a page under 2,500, but those of the reference."""
    for page in prose.pages():
        name, words = prose.name_of(page), len(page.read_text(encoding="utf-8").split())
        if name not in prose.NOT_YET and not name.startswith("docs/reference/"):
            assert words <= (700 if name == "README.md" else 2500), f"{name} has {words} words"
