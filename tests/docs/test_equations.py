"""Tables "From equation to function" and the docstrings of what they name give the same numbers."""

import inspect
import pydoc
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

PAPERS = Path(__file__).parents[2] / "docs" / "papers"
PAGES = {"cfrag": "CFRAG", "clusterrag": "ClusterRAG", "luf": "LUF", "pbr": "PBR", "purple": "PURPLE"}
NUMBERS = r"Eq\.\s(\d+(?:(?:,\s|\sand\s|\sto\s|-)\d+)*)"


def numbers(text: str) -> set[int]:
    """Equation numbers of "Eq. 1, 3 to 5 and 8": {1, 3, 4, 5, 8}."""
    found: set[int] = set()
    for listed in re.findall(NUMBERS, text):
        for part in re.split(r",\s|\sand\s", listed):
            first, *last = re.split(r"\sto\s|-", part)
            found |= set(range(int(first), int(last[0] if last else first) + 1))
    return found


def credited(docstring: str, paper: str) -> set[int]:
    """The equations that a docstring takes from a paper; what follows a semicolon is another source."""
    parts = re.split(r"[;\n]\s*\n|;\s|\.\n\n", docstring)
    return {number for part in parts if re.search(rf"\b{paper}\b", part) for number in numbers(part)}


def named(page: str) -> dict[str, set[int]]:
    """What a page's table names: a dotted name of the package, and the equations of all its rows."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for line in (PAPERS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and numbers(cells[0]):
            for name in re.findall(r"(?:`~?|<)(pbr_jax\.[\w.]+)[`>]", cells[2]):
                found[name] |= numbers(cells[0])
    return found


def resolved(name: str) -> tuple[Any, str]:
    """An object and the docstring of its module; a module is both."""
    found, place = pydoc.locate(name), name
    assert found is not None, f"{name} is not there"
    while place not in sys.modules:  # of a constant
        place = place.rpartition(".")[0]
    return found, inspect.getdoc(inspect.getmodule(found) or sys.modules[place]) or ""


CASES = [(page, name) for page in PAGES for name in named(page)]


def test_the_pages_name_functions() -> None:
    assert len(CASES) >= 30
    assert {page for page, _ in CASES} == set(PAGES)


@pytest.mark.parametrize(("page", "name"), CASES)
def test_a_page_and_a_docstring_give_the_same_equations(page: str, name: str) -> None:
    found, of_module = resolved(name)
    own, module = (credited(text, PAGES[page]) for text in (inspect.getdoc(found) or "", of_module))
    if inspect.ismodule(found):  # functions of the module have some of them
        for one in vars(found).values():
            module |= credited(getattr(one, "__doc__", "") or "", PAGES[page])
        assert named(page)[name] <= module
    elif own:
        assert named(page)[name] == own
    else:
        assert named(page)[name] <= module


def test_numbers_are_read() -> None:
    assert numbers("Eq. 1, 3 to 5 and 8, in 2025; Eq. 9-10") == {1, 3, 4, 5, 8, 9, 10}
    source = "Shi et al. (CFRAG), 2025, Eq. 8 and 12 (reverse); LUF, Eq. 3 (forward)."
    assert credited(source, "CFRAG") == {8, 12}
    assert credited(source, "LUF") == {3}
