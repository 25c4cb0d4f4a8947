"""Drawings of the docs: files are what the script draws; texts fit their boxes and can be read."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
sys.path.insert(0, str(PICTURES))
import draw  # noqa: E402  # pyright: ignore[reportMissingImports]

SVG = "{http://www.w3.org/2000/svg}"
EACH = [(name, theme) for name in draw.DRAWINGS for theme in draw.THEMES]


@pytest.mark.parametrize(("name", "theme"), EACH)
def test_what_is_checked_in_is_what_the_script_draws(name: str, theme: str) -> None:
    text = (PICTURES / f"{name}-{theme}.svg").read_text(encoding="utf-8")
    assert draw.DRAWINGS[name](theme) == text, "run: python docs/pictures/draw.py"
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert len((root.findtext(f"{SVG}desc") or "").split()) > 10


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_texts_fit_their_boxes_and_the_picture(name: str) -> None:
    textpath = pytest.importorskip("matplotlib.textpath", reason="matplotlib is not installed")
    from matplotlib.font_manager import FontProperties

    root = ElementTree.fromstring(draw.DRAWINGS[name]("light"))
    boxes = [
        tuple(float(one.get(k, 0)) for k in ("x", "y", "width", "height")) for one in root.iter(f"{SVG}rect")
    ]
    assert boxes
    for text in root.iter(f"{SVG}text"):
        bold = text.get("class") == "name"
        font = FontProperties(
            family="DejaVu Sans", size=16 if bold else 14, weight="bold" if bold else "normal"
        )
        path = textpath.TextPath((0, 0), text.text or "", prop=font)
        width = path.get_extents().width
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        x -= {"middle": width / 2}.get(text.get("text-anchor", ""), 0)
        ends = [
            left + wide for left, top, wide, high in boxes if left <= x < left + wide and top < y < top + high
        ]
        end = ends[0] if ends else float(root.get("width", 0))
        assert x + width <= end, text.text


@pytest.mark.parametrize("theme", draw.THEMES)
def test_colours_have_the_contrast_that_small_text_needs(theme: str) -> None:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((light(one), light(other)))
        return (high + 0.05) / (low + 0.05)

    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    colours, page = draw.THEMES[theme], {"light": "#ffffff", "dark": "#121212"}[theme]
    for ground in (colours["fill"], page):
        assert contrast(colours["ink"], ground) >= 7
        assert contrast(colours["note"], ground) >= 4.5
        assert contrast(colours["line"], ground) >= 3
        assert contrast(colours["warm"], ground) >= 3
