"""Tables of paired differences: each row less a reference, how sure that is, what could have been seen."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pbr_jax.eval.comparable import ABSENT, obstacles, same_variant, shared_clusters, statistics_of
from pbr_jax.eval.render import Block, Cell, Paragraph, Table
from pbr_jax.eval.runs import Row
from pbr_jax.eval.significance import (
    FEW,
    FEWEST,
    POWER,
    Column,
    Difference,
    estimates,
    holm,
    mcnemar,
)
from pbr_jax.eval.values import confidence_of, setting

_BINARY = ("accuracy", "exact_match")
"""Metrics that are 0 or 1 for each example."""

UNTESTED = {"target_bpb": "target_nll"}
"""Metrics that say by another unit what another one says: that one is tested, these are shown."""


class Counts(NamedTuple):
    """Questions that only this row answers rightly, that only the reference does, and McNemar's exact p."""

    gained: int
    lost: int
    p_value: float


def differences(rows: Sequence[Row], names: Sequence[str], reference: Row) -> list[Block]:
    """The table of differences from the reference, and sentences on pairs that have none."""
    others = [row for row in rows if row is not reference]
    by_row = [paired(row, reference, names) for row in others]
    counts = [_discordant(row, reference, names) for row in others]
    binary = [name for name in names if any(name in one for one in counts)]
    corrected = corrected_p(by_row)
    corrected_counts = corrected_p(counts)
    header, table = ["run"], []
    for name in names:
        header += [f"Δ {name}", f"detectable {name}", *([f"McNemar {name}"] if name in binary else [])]
    for i, row in enumerate(others):
        cells = [row.label]
        for name in names:
            cells += [
                _difference_text(by_row[i].get(name), corrected.get((i, name))),
                _seen(by_row[i].get(name)),
            ]
            if name in binary:
                cells.append(_counts_text(counts[i].get(name), corrected_counts.get((i, name))))
        table.append([Cell(text) for text in cells])
    caption = _caption(others, reference, names, corrected, bool(binary))
    return [Table(caption, header, table), *map(Paragraph, reasons(others, reference, names))]


def paired(row: Row, reference: Row, names: Sequence[str]) -> dict[str, Difference]:
    """Row minus reference, metric by metric, seeds averaged; without those that cannot be compared."""
    runs = [*row.runs, *reference.runs]
    clusters = shared_clusters(runs)
    known: dict[str, Column] = {}
    for name in names if clusters else ():
        pair = statistics_of(runs, name, list(clusters)) if same_variant(runs, name) else None
        if pair is not None:
            split = len(row.runs)
            known[name] = Column(pair[1], pair[0][:split], pair[0][split:])
    if not known:
        return {}
    intervals = estimates(
        list(known.values()),
        list(clusters.values()),
        resamples=int(setting(reference.first, "eval.resamples", 2000.0)),
        confidence=confidence_of(reference.first),
    )
    return dict(zip(known, intervals, strict=True))


def _discordant(row: Row, reference: Row, names: Sequence[str]) -> dict[str, Counts]:
    """McNemar's counts of the 0/1 metrics, between rows of one seed and from ten clusters on."""
    runs = [*row.runs, *reference.runs]
    clusters = shared_clusters(runs)
    if len(runs) > 2 or len(set(clusters.values())) < FEWEST:
        return {}
    pairs = {}
    for name in (name for name in names if name in _BINARY and same_variant(runs, name)):
        pair = statistics_of(runs, name, list(clusters))
        if pair is not None:
            pairs[name] = Counts(*mcnemar(pair[0][0][:, 0], pair[0][1][:, 0]))
    return pairs


def corrected_p(by_row: Sequence[Mapping[str, Difference | Counts]]) -> dict[tuple[int, str], float]:
    """Holm's p by row and metric; the comparisons of one metric are a family."""
    corrected = {}
    for name in dict.fromkeys(name for row in by_row for name in row if name not in UNTESTED):
        given = {
            i: row[name].p_value
            for i, row in enumerate(by_row)
            if name in row and row[name].p_value is not None
        }
        p_values = holm([float(p) for p in given.values() if p is not None])
        corrected |= {(i, name): p for i, p in zip(given, p_values, strict=True)}
    return corrected


def _caption(
    others: Sequence[Row],
    reference: Row,
    names: Sequence[str],
    corrected: Mapping[tuple[int, str], float],
    binary: bool,
) -> str:
    first = reference.first
    count = len({record.cluster for record in (first.records or {}).values()})
    what, one = first.clusters, first.clusters.removesuffix("s")
    several = any(len(row.runs) > 1 for row in (*others, reference))
    how = f"a bootstrap over {what}" if count >= FEW else f"Student's t, each {one} left out in turn"
    if several:
        how += f" (rows of several seeds: Student's t, each {one} and each seed left out in turn)"
    sentences = [
        f"Difference from {reference.label}, paired, n = {first.n} questions of {count or 'unknown'} {what}: "
        f"{confidence_of(first):.0%} intervals from {how}",
        _family(corrected)
        if corrected
        else f"No p is given{f' of fewer than {FEWEST} {what}' if count < FEWEST else ''}",
        "Detectable: the smallest difference that this comparison would have found with "
        f"{POWER:.0%} power, before correction",
    ]
    sentences += [
        f"{name} is the likelihood of {of} by another unit: it is shown, and not tested"
        for name, of in UNTESTED.items()
        if name in names
    ]
    if binary:
        sentences.append(
            "McNemar: questions that only this row and that only the reference answers rightly, and the "
            "exact p, which takes questions as independent, corrected over its column (Holm)"
        )
    return ". ".join(sentences)


def _family(corrected: Mapping[tuple[int, str], float]) -> str:
    """How many comparisons each metric's p was corrected for."""
    sizes = sorted(Counter(name for _, name in corrected).values())
    several = f"{sizes[0]} to {sizes[-1]}" if sizes[0] < sizes[-1] else str(sizes[0])
    return f"p corrected over the {several} comparison{'s' * (several != '1')} of each metric (Holm)"


def _difference_text(difference: Difference | None, p: float | None) -> str:
    if difference is None:
        return ABSENT
    if difference.low == difference.high:  # one user, or equal answers: nothing to infer from
        return f"{difference.value:+.4f}"
    text = f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
    return text if p is None else f"{text} {_p(p)}"


def _seen(difference: Difference | None) -> str:
    return f"{difference.detectable:.4f}" if difference is not None and difference.detectable else ABSENT


def _counts_text(counts: Counts | None, p: float | None) -> str:
    return ABSENT if counts is None or p is None else f"{counts.gained} : {counts.lost} {_p(p)}"


def _p(p: float) -> str:
    return f"p={p:.3f}" if p >= 0.001 else "p<0.001"


def reasons(others: Sequence[Row], reference: Row, names: Sequence[str]) -> list[str]:
    """Why there is no difference, a sentence for each pair that has none."""
    reasons = []
    for row in others:
        runs = [*row.runs, *reference.runs]
        why = obstacles(runs)
        if why:
            reasons.append(
                f"No difference between {row.label} and {reference.label} is given: they {' and '.join(why)}."
            )
            continue
        for name in (name for name in names if not same_variant(runs, name)):
            if all(name in run.metrics for run in runs):
                reasons.append(
                    f"No difference of {name} between {row.label} and {reference.label} is given: they "
                    "computed it in different variants."
                )
    return reasons
