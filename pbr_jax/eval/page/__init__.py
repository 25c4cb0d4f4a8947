"""The report as a page for people: verdict, plots, tables and single questions, in one HTML file.

The file needs nothing from elsewhere. It holds the texts of some questions where runs keep texts.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
import tomllib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from pbr_jax.base.tables import Bold
from pbr_jax.base.terminal import visible
from pbr_jax.eval.cards import Card, Pick, Shown, cards, gains, picked
from pbr_jax.eval.differences import corrected_p, differences, is_shown, obstacles, reasons
from pbr_jax.eval.metrics import LOWER_IS_BETTER, direction
from pbr_jax.eval.render import Block, Forest, Table
from pbr_jax.eval.runs import Record, Row, confidence_of, measured
from pbr_jax.eval.section import Section, details, warnings
from pbr_jax.eval.significance import FEWEST, Difference, turned
from pbr_jax.eval.tables import intervals, label, mean, values


def html(
    title: str,
    sections: Sequence[Section],
    missing: Sequence[str] = (),
    verdict: Sequence[Block] = (),
    questions: int = 60,
) -> str:
    """The page. `missing` are warnings on all of it, `verdict` stands in the place of the general one.

    `questions`: single questions that are shown of each section; 0: none, so that the page holds nobody's
    text and no user's name.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pbr_jax.eval", "page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"number": number, "shorter": shorter, "visible": visible}
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.globals |= {
        "interval": interval,
        "gain_text": gain_text,
        "define": define,
        "kind": kind,
        "scale_of": scale_of,
    }
    script, style = (_file(f"page.{ending}") for ending in ("js", "css"))
    made = [_section(section, questions, BYTES // len(sections)) for section in sections]
    names = [name for one in made for name in one["names"]]
    lead = [*map(kind, verdict), "forest"].index("forest")  # the answer, before the first plot
    return environment.get_template("page.html.j2").render(
        title=title, sections=made, missing=missing, verdict=verdict, lead=lead, script=script, style=style,
        hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(), terms=glossary(names),
    )  # fmt: skip


def _file(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, questions: int, size: int) -> dict[str, Any]:
    """What the template shows of a section."""
    rows, names = section.rows, section.names
    shown: dict[str, Any] = {"heading": section.heading, "warnings": warnings(section), "names": names}
    if not names:
        return shown | {"found": None, "more": details(section, plots=True)}
    found = compare(section)
    held = questions_of(found, questions, size)
    return shown | {
        "found": found,
        "sentences": sentences(found),
        "table": _deciding_first(values(rows, names), [found.measure, *names]),
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


def _deciding_first(table: Table, names: Sequence[str]) -> Table:
    """The same table with these measures, in this order, before other columns: a narrow screen shows them."""
    order = list(dict.fromkeys([0, *map(table.header.index, names), *range(len(table.header))]))
    cells = [[row[i] for i in order] for row in table.rows]
    return dataclasses.replace(table, header=[table.header[i] for i in order], rows=cells)


def _embedded(held: Any) -> str:
    """JSON that may stand inside of a script element."""
    text = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def kind(block: Block) -> str:
    """`table`, `figure`, `forest`, `fold`, `code`, `paragraph` or `heading`: what the template asks."""
    return type(block).__name__.lower()


# -- paired gains over the reference -------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """A row less the reference, turned so that more is better; `p` is Holm's, None where none is given.

    `shown`: 1 where the row is shown to be better, -1 worse, 0 where neither is. That takes an interval
    without zero and a p, corrected for all rows, below one less the confidence.
    """

    row: Row
    difference: Difference
    p: float | None
    shown: int

    @property
    def label(self) -> str:
        """The row's, marked where it read the answers or is mostly not what its name says."""
        return label(self.row)


@dataclass(frozen=True)
class Comparison:
    """All rows of a section against its reference. `gains`: by metric and row label, where there is one."""

    section: Section
    measure: str
    gains: Mapping[str, Mapping[str, Gain]]
    clusters: int

    @property
    def main(self) -> list[Gain]:
        """The gains in the main measure, the largest first."""
        return sorted(self.gains.get(self.measure, {}).values(), key=lambda one: -one.difference.value)


def compare(section: Section) -> Comparison:
    """The comparison in all metrics that are shown. The main measure is `target_nll` where all have it."""
    likely = all("target_nll" in run.metrics for run in section.runs)
    measure = "target_nll" if likely else section.names[0]
    p_values, alpha = corrected_p(section.compared), 1 - confidence_of(section.reference.first)
    gains: dict[str, dict[str, Gain]] = {}
    for i, (row, by_name) in enumerate(zip(section.others, section.compared, strict=True)):
        for name, found in by_name.items():
            p = p_values.get((i, name))
            better = turned(found, direction(name))
            shown = is_shown(better, p, alpha) * (1 if better.low > 0 else -1)
            gains.setdefault(name, {})[row.label] = Gain(row, better, p, shown)
    records = section.reference.first.records or {}
    return Comparison(section, measure, gains, len({record.cluster for record in records.values()}))


def why_not(section: Section) -> list[str]:
    """Why the runs of a section cannot be compared; empty where nothing speaks against it."""
    reasons = obstacles(section.runs)
    return reasons or (["have no predictions"] if any(run.records is None for run in section.runs) else [])


class Scale(NamedTuple):
    """Values between `low` and `high`, and some round ones among them."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Per cent of the way from the low end to the high one."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def scale(values: Sequence[float]) -> Scale:
    """A scale that holds the finite values and zero, a little wider than they are."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    if low == high:
        low, high = -1.0, 1.0
    edge = 0.06 * (high - low)
    low, high = low - edge, high + edge
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    ticks = (i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1))
    return Scale(low, high, tuple(round(tick, 12) for tick in ticks))


def scale_of(block: Forest) -> Scale:
    """The scale of all intervals of a block."""
    return scale([end for _, one in block.lines if one for end in (one.low, one.high)])


# -- numbers and sentences -----------------------------------------------------------------------------


_NAMED = 4  # systems that a sentence names
_LONG_NUMBER = re.compile(r"(?<![\w.])([-+]?\d+\.\d{4})(?!\d)")


def number(value: float, *beside: float, signed: bool = False) -> str:
    """The value in about three digits, with the decimals that the largest number beside it has."""
    largest = max(abs(value), *map(abs, beside), 0.0)
    decimals = 3 if largest < 1 else 2 if largest < 10 else 1 if largest < 100 else 0
    text = f"{value:{'+' if signed else ''},.{decimals}f}"
    return re.sub(r"^[-+](?=[0.,]*$)", "", text).replace("-", "−")  # a zero has no sign


def interval(value: float, low: float, high: float, *, signed: bool = False) -> str:
    """`+0.213 [+0.102, +0.324]`; the value alone where the interval has no width."""
    value_text = number(value, low, high, signed=signed)
    if low == high:
        return value_text
    ends = (number(end, value, low, high, signed=signed) for end in (low, high))
    return f"{value_text} [{', '.join(ends)}]"


def shorter(text: str) -> str:
    """The text with numbers of four decimals in three, and control characters as escapes."""
    return _LONG_NUMBER.sub(
        lambda found: f"{float(found[1]):{'+' if found[1][0] == '+' else ''}.3f}", visible(text)
    )


def gain_text(gain: Gain) -> str:
    one = gain.difference
    return interval(one.value, one.low, one.high, signed=True)


def sentences(found: Comparison) -> list[str]:
    """One to three sentences on the rows of a section, by intervals of paired gains in the main measure."""
    section, measure = found.section, found.measure
    first, reference = section.rows[0], section.reference.label
    if len(section.rows) == 1:
        return [f"{_one(first, measure)} There is one run, so nothing is compared."]
    if reasons := why_not(section):
        return [f"These runs cannot be compared: they {' and '.join(reasons)}."]
    gains, what = found.main, section.reference.first.clusters
    if not gains:
        return [f"No paired difference in {measure} can be given, so no run is shown to be better."]
    if found.clusters < FEWEST:
        low, high = (number(end(g.difference.value for g in gains), signed=True) for end in (min, max))
        return [
            f"It cannot be told whether any system is better than {reference}: there are {found.clusters} "
            f"{what}, and at least {FEWEST} are needed. Gains in {measure} from {low} to {high} were "
            "measured, which may hold for these alone."
        ]
    return [*_shown(gains, reference, measure), *_open(gains, reference), _basis(found)]


def _one(row: Row, measure: str) -> str:
    value = mean(row, measure)
    if value is None:
        return f"{row.label} has no {measure}."
    low, high = intervals(row, [measure], confidence_of(row.first)).get(measure, (value, value))
    count = measured((row.first.records or {}).values(), measure) or row.first.n
    return f"{row.label} has {measure} {interval(value, low, high)} on {count} questions."


def _shown(gains: Sequence[Gain], reference: str, measure: str) -> list[str]:
    sentences = []
    for sign, word in ((1, "better"), (-1, "worse")):
        some = [gain for gain in gains if gain.shown == sign]
        some = some if sign > 0 else some[::-1]
        if some:
            named = "; ".join(f"{gain.label} by {gain_text(gain)}" for gain in some[:_NAMED])
            rest = f"; and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
            sentences.append(f"Shown to be {word} than {reference} in {measure}: {named}{rest}.")
    return sentences


def _open(gains: Sequence[Gain], reference: str) -> list[str]:
    some = [gain for gain in gains if not gain.shown]
    if not some:
        return []
    names = ", ".join(f"{gain.label}{_detectable(gain)}" for gain in some[:_NAMED])
    rest = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return [f"Not shown to differ from {reference}: {names}{rest}."]


def _detectable(gain: Gain) -> str:
    size = gain.difference.detectable
    return f" (detectable: {number(size)})" if size else ""


def _basis(found: Comparison) -> str:
    run = found.section.reference.first
    several = len(found.section.rows) > 2
    turned = ", also where lower values are better" if found.measure in LOWER_IS_BETTER else ""
    questions = measured((run.records or {}).values(), found.measure)
    order = " Whether two of the others differ from each other is not tested here." if several else ""
    return (
        f"Gains are paired over {questions} questions of {found.clusters} {run.clusters}, with "
        f"{confidence_of(run):.0%} intervals and p corrected over all systems (Holm); more is better"
        f"{turned}.{order}"
    )


@functools.cache
def _glossary() -> dict[str, dict[str, str]]:
    return tomllib.loads(_file("glossary.toml"))


def define(name: str) -> str:
    """What a measure means; "" for one that is not known."""
    for pattern, text in _glossary()["measures"].items():
        if match := re.fullmatch(pattern, name):
            return text.format(*(group or "" for group in match.groups()))
    return ""


def glossary(names: Iterable[str]) -> dict[str, str]:
    """The known measures of these names, and the words of the report that are no measures."""
    meanings = {name: define(name) for name in dict.fromkeys(names)}
    return {name: text for name, text in meanings.items() if text} | _glossary()["words"]


# -- single questions, within bounds: sampled, and said to be ---------------------------------------------


BYTES = 1_600_000
"""Of the questions of all sections: what a page of 3 MB leaves, with room for its tables."""

_LEAST = 8  # questions picked for each row
_DOCUMENTS = 5  # of a question and run
_LONG, _SHORT = 1200, 400  # characters of a question or an answer, and of a document


def questions_of(found: Comparison, count: int, size: int) -> dict[str, Any]:
    """Questions of a section, for the page's script; empty where runs hold no predictions.

    Args:
      count: questions that are aimed at; of each system's gains over the reference the largest come first.
      size: bytes of JSON that the questions may take; what is over it is left out.
    """
    rows, reference = found.section.rows, found.section.reference
    base = reference.first.records or rows[0].first.records
    if not base or count < 1:
        return {}
    picks = _picks(found, list(base), count)
    by_run = [
        _read(run.path, [pick for pick in picks if pick in (run.records or {})])
        for run in (row.first for row in rows)
    ]
    questions, left = [], size
    for id in picks:
        question = _question(found, base[id], [own.get(id) for own in by_run])
        left -= len(json.dumps(question))
        if left < 0:
            break
        questions.append(question)
    mains = [gain.row.label for gain in found.main]
    labels = [row.label for row in rows]
    return {
        "rows": list(map(visible, labels)),
        "reference": labels.index(reference.label),
        "shown": labels.index(mains[0]) if mains else labels.index(reference.label),
        "measure": found.measure,
        "lower": found.measure in LOWER_IS_BETTER,
        "names": _names(found),
        "total": len(base),
        "questions": questions,
    }


def _names(found: Comparison) -> list[str]:
    return list(dict.fromkeys([found.measure, *found.section.names]))


def _picks(found: Comparison, ids: Sequence[str], count: int) -> list[str]:
    """Ids in turn for each row: those of the largest gains and losses first, then drawn ones."""
    reference, others = found.section.reference.first, found.main
    if not others:
        return [pick.id for pick in picked({}, ids, count)]
    each = max(_LEAST, count // len(others))
    lists: list[list[Pick]] = [
        picked(gains(gain.row.first, reference, found.measure), ids, each) for gain in others
    ]
    turns = (some[place].id for place in range(each) for some in lists if place < len(some))
    return list(dict.fromkeys(turns))[: max(count, _LEAST)]


def _read(folder: Any, ids: Sequence[str]) -> dict[str, Card]:
    return {card.id: card for card in cards(folder, ids, check=False)} if ids else {}


def _question(found: Comparison, record: Record, own: Sequence[Card | None]) -> dict[str, Any]:
    first = next(card for card in own if card is not None)
    documents: dict[tuple[Any, ...], list[Any]] = {}
    runs = [None if card is None else _run(found, card, documents) for card in own]
    return {
        "id": visible(first.id),
        "user": visible(first.user_id),
        "category": visible(first.category),
        "history": first.history,
        "time": first.time,
        "input": _cut(first.input or first.query, _LONG),
        "target": None if first.target is None else _cut(first.target, _LONG),
        "documents": list(documents.values()),
        "runs": runs,
    }


def _run(found: Comparison, card: Card, documents: dict[tuple[Any, ...], list[Any]]) -> list[Any]:
    """Answer, metrics, and documents as [place among the question's, score, its parts, in the prompt]."""
    shown = [one for one in card.documents if one.in_prompt] or list(card.documents)
    ranked = [[_place(one, card, documents), _short(one.score),
               {name: _short(score) for name, score in one.scores.items()}, int(one.in_prompt)]
              for one in shown[:_DOCUMENTS]]  # fmt: skip
    metrics = [_short(card.metrics[name]) if name in card.metrics else None for name in _names(found)]
    return [_cut(card.prediction or "", _LONG), metrics, ranked, len(shown)]


def _place(one: Shown, card: Card, documents: dict[tuple[Any, ...], list[Any]]) -> int:
    whose = "" if one.user_id == card.user_id else one.user_id or "shared"
    documents.setdefault(
        (one.user_id, one.id, one.span), [visible(one.id), visible(whose), one.time, _cut(one.text, _SHORT)]
    )
    return list(documents).index((one.user_id, one.id, one.span))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _cut(text: str, most: int) -> str:
    text = visible(text)
    return text if len(text) <= most else text[: most - 1] + "…"
