"""Formulas as MathML, which browsers show by themselves: pages need no script and no network."""

from html import escape
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mathml(formula: str, display: str) -> str:
    """A formula of LaTeX as an element; a screen reader, or a copy of the page, has the LaTeX too."""
    element = convert(formula, display=display)
    return element.replace("<math ", f'<math alttext="{escape(" ".join(formula.split()))}" ', 1)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula" tabindex="0">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode
