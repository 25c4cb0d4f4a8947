"""Numbers in three digits, a verdict in sentences that say no more than the intervals do, and a glossary."""

import functools
import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources

from pbr_jax.base.terminal import visible
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.page.comparison import Comparison, Gain, why_not
from pbr_jax.eval.runs import Row, confidence_of
from pbr_jax.eval.significance import FEWEST
from pbr_jax.eval.tables import intervals, mean

_NAMED = 4  # systems that a sentence names
_LONG = re.compile(r"(?<![\w.])([-+]?\d+\.\d{4})(?!\d)")


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
    return _LONG.sub(lambda found: f"{float(found[1]):{'+' if found[1][0] == '+' else ''}.3f}", visible(text))


def gain_text(gain: Gain) -> str:
    one = gain.difference
    return interval(one.value, one.low, one.high, signed=True)


def verdict(found: Comparison) -> list[str]:
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
    return f"{row.label} has {measure} {interval(value, low, high)} on {row.first.n} questions."


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
    order = " Whether two of the others differ from each other is not tested here." if several else ""
    return (
        f"Gains are paired over {run.n} questions of {found.clusters} {run.clusters}, with "
        f"{confidence_of(run):.0%} intervals and p corrected over all systems (Holm); more is better"
        f"{turned}.{order}"
    )


@functools.cache
def _glossary() -> dict[str, dict[str, str]]:
    return tomllib.loads(
        resources.files("pbr_jax.eval.page").joinpath("glossary.toml").read_text(encoding="utf-8")
    )


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
