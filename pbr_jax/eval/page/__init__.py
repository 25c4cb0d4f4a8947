"""The report as a page for people: verdict, plots, tables, single questions and users, in one HTML file.

The file needs nothing from elsewhere. It holds the texts of some questions where runs keep texts.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from importlib import resources
from typing import Any

from pbr_jax.base.tables import Bold
from pbr_jax.base.terminal import visible
from pbr_jax.eval.differences import differences, reasons
from pbr_jax.eval.page import words
from pbr_jax.eval.page.comparison import Scale, compare, scale
from pbr_jax.eval.page.questions import BYTES, data
from pbr_jax.eval.page.words import define, glossary
from pbr_jax.eval.render import Block, Forest
from pbr_jax.eval.runs import confidence_of
from pbr_jax.eval.section import Section, details, warnings
from pbr_jax.eval.tables import values


def html(
    title: str,
    sections: Sequence[Section],
    missing: Sequence[str] = (),
    verdict: Sequence[Block] = (),
    questions: int = 60,
) -> str:
    """The page. `missing` are warnings on all of it, `verdict` stands in the place of the general one.

    `questions`: single questions that are shown of each section; 0: none, and no users, so that the page
    holds nobody's text and no user's name.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pbr_jax.eval", "page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"number": words.number, "shorter": words.shorter, "visible": visible}
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.globals |= {
        "interval": words.interval,
        "gain_text": words.gain_text,
        "define": define,
        "kind": kind,
        "scale_of": scale_of,
    }
    script, style = (_file(f"page.{kind}") for kind in ("js", "css"))
    made = [_section(section, questions, BYTES // len(sections)) for section in sections]
    names = [name for one in made for name in one["names"]]
    return environment.get_template("page.html.j2").render(
        title=title, sections=made, missing=missing, verdict=verdict, script=script, style=style,
        hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(), terms=glossary(names),
    )  # fmt: skip


def _file(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, questions: int, size: int) -> dict[str, Any]:
    """What the template shows of a section."""
    rows, names = section.rows, section.names
    told: dict[str, Any] = {"heading": section.heading, "warnings": warnings(section), "names": names}
    if not names:
        return told | {"found": None, "more": details(section, plots=True)}
    found = compare(section)
    held = data(found, questions, size)
    return told | {
        "found": found,
        "sentences": words.verdict(found),
        "table": values(rows, names),
        "differences": differences(rows, names, section.reference, section.compared)
        if section.others
        else [],
        "scale": scale([end for g in found.main for end in (g.difference.low, g.difference.high)]),
        "reasons": reasons(section.others, section.reference, names),
        "data": held,
        "json": _embedded(held),
        "confidence": f"{confidence_of(section.reference.first):.0%}",
        "more": details(section, plots=True),
    }


def _embedded(held: Any) -> str:
    """JSON that may stand inside of a script element."""
    text = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def kind(block: Block) -> str:
    """`table`, `figure`, `forest`, `fold`, `code`, `paragraph` or `heading`: what the template asks."""
    return type(block).__name__.lower()


def scale_of(block: Forest) -> Scale:
    """The scale of all intervals of a block."""
    return scale([end for _, one in block.lines if one for end in (one.low, one.high)])
