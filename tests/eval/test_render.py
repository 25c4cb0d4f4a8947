"""Hostile text stays text in all three formats."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from pbr_jax.eval.page import html
from pbr_jax.eval.render import (
    Bold,
    Figure,
    Forest,
    Heading,
    Interval,
    Page,
    Paragraph,
    Table,
    latex,
    markdown,
)

HOSTILE = r"<b>&a|b*c_d_e $5% #1 ~^{x}\y `z` [t](u) [0, 1]"


@pytest.fixture
def page() -> Page:
    table = Table(HOSTILE, ["run", "v|w"], [[HOSTILE, Bold("1.0")], ["two\nlines", "[3]"]])
    blocks = [Heading(HOSTILE), Paragraph(HOSTILE), Paragraph("careful", warning=True), table]
    return Page("A </title> page", [*blocks, Figure("<svg></svg>", 'say "hi"')])


class Reader(HTMLParser):
    """Collects tags and texts, and checks that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_html_keeps_text_and_has_no_foreign_tags(page):
    text = html(page.title, [], verdict=page.blocks)
    reader = Reader(text)
    assert reader.open == []
    assert "b" not in reader.tags
    assert reader.texts.count(HOSTILE) == 4
    assert reader.texts.count("A </title> page") == 2
    assert {"title", "style", "table", "svg", "strong", "figcaption"} <= set(reader.tags)
    assert not re.search(r"(?:src|href)=(?!\"#)|url\(|@import", text)


def test_markdown_escapes_what_would_be_markup_and_nothing_else():
    def written(text: str) -> str:
        return markdown(Page("t", [Paragraph(text)])).split("\n\n")[1].rstrip("\n")

    assert written("p<0.001, 2 > 1, R&D") == "p<0.001, 2 > 1, R&D"
    assert written("<b>x</b> &lt; &#38; <!--") == "&lt;b>x&lt;/b> &amp;lt; &\\#38; &lt;!--"
    assert written("> said") == "&gt; said"


def test_markdown_tables_keep_their_columns(page):
    text = markdown(page)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3, 3, 3, 3]
    assert "**1.0**" in rows[2]
    assert "two lines" in rows[3]
    assert "&lt;b>&a\\|b\\*c_d_e" in text
    assert "[t](u)" not in text
    assert "[0, 1]" in text
    assert "> **Warning:** careful" in text
    assert "<svg" not in text


def test_latex_escapes_every_special_character(page):
    text = latex(page)
    assert (
        r"\textless{}b\textgreater{}\&a\textbar{}b*c\_d\_e \$5\% \#1 \textasciitilde{}\textasciicircum{}"
        r"\{x\}\textbackslash{}y `z` {[}t{]}(u) {[}0, 1{]}" in text
    )
    (body,) = re.findall(r"\\midrule\n(.*)\n\\bottomrule", text, flags=re.DOTALL)
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines()] == [1, 1]
    assert all(line.endswith(r" \\") for line in body.splitlines())
    assert r"\textbf{1.0}" in body
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_a_forest_shows_each_interval_on_one_scale():
    lines = [
        (["a", "12"], Interval(0.5, 0.0, 1.0)),
        (["b", "9"], Interval(-0.5, -1.0, -0.25)),
        (["c", "3"], None),
    ]
    forest = Forest("gains", ["group", "questions", "gain"], lines, without="too few users")
    first, second, third = markdown(Page("t", [forest])).splitlines()[-3:]
    assert first == f"| a | 12 | +0.500 [+0.000, +1.000] | `{' ' * 12}│─────•──────` |"
    assert second == f"| b | 9 | -0.500 [-1.000, -0.250] | `──────•───{' ' * 2}│{' ' * 12}` |"
    assert third == "| c | 3 | too few users |  |"
    assert "c & 3 & too few users" in latex(Page("t", [forest]))
    text = html("t", [], verdict=[forest])
    drawn = re.findall(r'<line x1="([\d.]+)%" x2="([\d.]+)%" y1="11".*?<circle cx="([\d.]+)%"', text)
    places = np.array(drawn, float)  # in per cent; one value is as far from the next in both lines
    assert places.shape == (2, 3)
    values = np.array([[0.0, 1.0, 0.5], [-1.0, -0.25, -0.5]])
    slope, offset = np.polyfit(values.ravel(), places.ravel(), 1)
    np.testing.assert_allclose(slope * values + offset, places, atol=0.02)
    assert slope > 0
    assert text.count("too few users") == 1


def test_a_forest_of_hostile_names_is_text():
    forest = Forest(HOSTILE, [HOSTILE, HOSTILE, "gain"], [([HOSTILE, HOSTILE], None)], without="none")
    reader = Reader(html("t", [], verdict=[forest]))
    assert reader.open == []
    assert "b" not in reader.tags
    (line,) = [one for one in markdown(Page("t", [forest])).splitlines() if "none" in one]
    assert len(re.findall(r"(?<!\\)\|", line)) == 5
