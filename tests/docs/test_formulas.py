"""Formulas of docstrings become MathML, whichever of LaTeX they use."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("latex2mathml", reason="the docs' packages are not installed")
pytest.importorskip("docutils", reason="the docs' packages are not installed")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import formulas  # noqa: E402  # pyright: ignore[reportMissingImports]

MATH = "{http://www.w3.org/1998/Math/MathML}"


def test_a_fraction_has_its_parts_and_its_source() -> None:
    root = ElementTree.fromstring(formulas.mathml(r"\frac{a}{b} < c", "block"))
    [fraction] = root.iter(f"{MATH}mfrac")
    assert ["".join(part.itertext()) for part in fraction] == ["a", "b"]
    assert root.get("alttext") == r"\frac{a}{b} < c"
    assert root.get("display") == "block"


def test_every_formula_of_the_code_is_read_whole() -> None:
    found = [
        formula
        for path in (ROOT / "pbr_jax").rglob("*.py")
        for formula in re.findall(r"\.\. math::((?:.+\n|\n +)+?)(?=\n)", path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 10
    for formula in found:
        root = ElementTree.fromstring(formulas.mathml(formula, "block"))
        left = [text for one in root.iter() if "\\" in (text := one.text or "")]
        assert not left, formula  # a command that the converter does not know stays as it is written
