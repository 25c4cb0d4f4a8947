"""What rows of a table share, whether they may be compared, and tables of their paired differences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.tables import Bold, Table
from pbr_jax.eval import dialogue
from pbr_jax.eval.metrics import LOWER_IS_BETTER, plain_mean, text_metric, within_range
from pbr_jax.eval.render import Block, Paragraph
from pbr_jax.eval.runs import Record, Row, Run, beside, confidence_of, measured, seeds_of, setting
from pbr_jax.eval.significance import FEW, FEWEST, POWER, Column, Difference, Finish, estimates, holm, mcnemar
from pbr_jax.options import Eval

ABSENT = "–"
"""What stands where there is nothing to say."""

_TOLD = ("llm.", "encoder.", "prompt.", "generate.", "retrieve.k", "select.k", "select.llm.model",
         "neighbours.m", "benchmark.training", "limit_training", "limit_history",
         "feedback.limit")  # fmt: skip
"""Fields, and sections, that every row tells where rows differ in them: with another model, budget or
number of documents a difference between systems may be theirs."""

_UNTOLD = frozenset(
    {"llm.batch_size", "llm.tensor_parallel", "llm.offline", "llm.key_variable", "llm.concurrency",
     "llm.timeout", "llm.retries", "llm.max_failed", "llm.check_prompts", "llm.headers_variable",
     "llm.price_prompt", "llm.price_completion", "encoder.batch_tokens",
     "generate.seed"}
)  # fmt: skip
"""How fast the same comes about, and what is averaged over."""

_DOCUMENTS = ("neighbours.m", "retrieve.k", "select.k")
"""Fields that say which documents, and how many."""

_RECOMPUTED = ("f1_macro", "rmse")
"""Metrics that single examples do not have; they are computed from predictions and targets."""


def obstacles(runs: Sequence[Run]) -> list[str]:
    """Why no difference between these runs means anything; empty where nothing known speaks against it."""
    reasons = []
    if len({str(run.fingerprint.get("data")) for run in runs}) > 1:
        reasons.append("read different data (their data hashes differ)")
    every = set[str]().union(*(run.records or () for run in runs))
    lacking = [(run.forgotten, every - {*run.records, *run.unanswered}) for run in runs if run.records]
    if all(len(lost) <= forgotten for forgotten, lost in lacking):
        every = every.difference(*(lost for _, lost in lacking))
    known = [
        {id: record for id, record in {**run.records, **run.unanswered}.items() if id in every}
        for run in runs
        if run.records is not None
    ]
    owners = [{id: (r.user_id, r.unit) for id, r in records.items()} for records in known]
    asked = {run.n + int(run.counts.get("unanswered", 0)) for run in runs}
    if (len(asked) > 1 and len(known) < len(runs)) or any(one != owners[0] for one in owners):
        reasons.append("did not score the same examples")
    elif any(len({records[id].target for records in known} - {None}) > 1 for id in (known or [{}])[0]):
        reasons.append("were scored against different targets")  # None: no text was kept, or no target
    return reasons


def same_variant(runs: Sequence[Run], name: str) -> bool:
    """Whether all these runs compute the metric by one definition."""
    return len({run.variants.get(name) for run in runs}) == 1


def shared_clusters(runs: Sequence[Run]) -> dict[str, str]:
    """`Record.cluster` of each example that all runs scored, sorted by id.

    Empty where runs cannot be compared, or hold no examples.
    """
    if obstacles(runs) or any(run.records is None for run in runs):
        return {}
    shared = set(runs[0].records or ()).intersection(*(run.records or () for run in runs))
    return {id: record.cluster for id, record in sorted((runs[0].records or {}).items()) if id in shared}


def statistics_of(
    runs: Sequence[Run], name: str, ids: Sequence[str]
) -> tuple[list[np.ndarray], Finish] | None:
    """Statistics `[n, s]` of each run and how they end in a value; None where a run lacks the metric. An
    example that has the metric in none of the runs has NaN."""
    records = [[(run.records or {})[id] for id in ids] for run in runs]
    if name in dialogue.METRICS and all(name in run.metrics for run in runs):
        return [_over_frames(name, column) for column in records], dialogue.mean_over_frames
    has = np.array([[name in record.metrics for record in column] for column in records])
    if has.any() and (has == has[0]).all():
        values = [[[record.metrics.get(name, np.nan)] for record in column] for column in records]
        return list(map(np.array, values)), plain_mean
    if name == "expected_rmse" and all("expected_mae" in r.metrics for column in records for r in column):
        squares = [np.array([[r.metrics["expected_mae"] ** 2] for r in column]) for column in records]
        return squares, text_metric("rmse").finish
    if name == "expected_correlation" and all(r.expected is not None for column in records for r in column):
        metric = text_metric("correlation", runs[0].labels)
        pairs = ([(repr(r.expected), str(r.target)) for r in column] for column in records)
        return [metric.statistics(*map(list, zip(*column, strict=True))) for column in pairs], metric.finish
    answered = all(r.prediction is not None and r.target is not None for column in records for r in column)
    if name not in _RECOMPUTED or not runs[0].labels or not answered:
        return None
    metric = text_metric(name, runs[0].labels)
    texts = ([(str(r.prediction), str(r.target)) for r in column] for column in records)
    return [metric.statistics(*map(list, zip(*pairs, strict=True))) for pairs in texts], metric.finish


def _over_frames(name: str, records: Sequence[Record]) -> np.ndarray:
    """Statistics `[n, 2]` of a metric over frames, from what `metrics.per_frame` says of each example."""
    pairs = (
        (r.metrics.get(name, 0.0), r.metrics.get(f"{name}_frames", float(name in r.metrics))) for r in records
    )
    return np.array([[mean * count, count] for mean, count in pairs]).reshape(-1, 2)


def needs_texts(run: Run) -> bool:
    """Whether a run has metrics that are recomputed from answers and targets, and keeps neither."""
    records = (run.records or {}).values()
    recomputed = {*_RECOMPUTED, "expected_correlation"} & run.metrics.keys()
    return bool(recomputed and records) and all(record.target is None for record in records)


def settings(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The settings that bear on a comparison and differ between rows: what each row says, by the field."""
    fields = dict.fromkeys(field for row in rows for field in row.first.config if _is_told(field))
    columns = {field: [_shown(row.first.config, field) for row in rows] for field in fields}
    columns = {field: values for field, values in columns.items() if _differ(rows, field)}
    for name, key in (("task", "task"), ("training data", "training")):
        hashes = [_hashes(run.fingerprint.get(key) for run in row.runs) for row in rows]
        if len({*hashes} - {ABSENT}) > 1:  # whether a system reads others' data at all, its methods tell
            columns[name] = hashes
    for part in ("llm", "select.llm", "encoder"):
        if _differs_in_secret(rows, part):
            columns[f"{part} weights"] = [_hashes(run.weights.get(part) for run in row.runs) for row in rows]
    return {field: values for field, values in columns.items() if len(set(values)) > 1}


def _is_told(field: str) -> bool:
    return field not in _UNTOLD and any(
        field.startswith(name) if name.endswith(".") else field == name for name in _TOLD
    )


def _shown(config: Mapping[str, Any], field: str) -> str:
    """A value in a cell; `ABSENT` for None and for a field that the row's methods lack or do not use."""
    value = config.get(field)
    return ABSENT if value is None or _is_idle(config, field) else str(value)


def _is_idle(config: Mapping[str, Any], field: str) -> bool:
    """Whether a field chooses documents, and the run retrieves none."""
    return field in _DOCUMENTS and config.get("retrieve.method") == "none"


def _differ(rows: Sequence[Row], field: str) -> bool:
    """Whether the rows that use a field differ in it."""
    configs = [row.first.config for row in rows]
    return len({_shown(config, field) for config in configs if not _is_idle(config, field)}) > 1


def _hashes(hashes: Any) -> str:
    return ", ".join(dict.fromkeys(str(value or ABSENT)[:8] for value in hashes))


def _differs_in_secret(rows: Sequence[Row], part: str) -> bool:
    """Whether runs with the same settings of a model had other weights: a path holds something else now."""
    known: dict[str, set[str]] = {}
    for run in (run for row in rows for run in row.runs if part in run.weights):
        own = {key: value for key, value in run.config.items() if key.startswith(f"{part}.")}
        known.setdefault(repr(sorted(own.items())), set()).add(run.weights[part])
    return any(len(hashes) > 1 for hashes in known.values())


_BINARY = ("accuracy", "exact_match")
"""Metrics that are 0 or 1 for each example."""

UNTESTED = {"target_bpb": "target_nll"}
"""Metrics that are another one divided by something else: that one is tested, these are not."""


class Counts(NamedTuple):
    """Questions that only this row answers rightly, that only the reference does, and McNemar's exact p."""

    gained: int
    lost: int
    p_value: float


def differences(
    rows: Sequence[Row],
    names: Sequence[str],
    reference: Row,
    by_row: Sequence[Mapping[str, Difference]],
    *,
    explained: bool = True,
) -> list[Block]:
    """The table of differences from the reference, how to read it, and sentences on pairs that have none.

    A difference is bold where it is shown (`is_shown`). `by_row`: the differences of all rows but the
    reference (`paired`). `explained`: False where the section has said before how intervals and p come about.
    """
    others = [row for row in rows if row is not reference]
    counts = [_discordant(row, reference, names) for row in others]
    binary = [name for name in names if any(name in one for one in counts)]
    corrected = corrected_p(by_row)
    corrected_counts, alpha = corrected_p(counts), 1 - confidence_of(reference.first)
    header, table = ["run"], []
    for name in names:
        header += [
            f"Δ {name} ({sign(name)})",
            f"detectable {name}",
            *([f"McNemar {name}"] if name in binary else []),
        ]
    for i, row in enumerate(others):
        cells, shared = [row.label], shared_clusters([*row.runs, *reference.runs])
        both = [record for id, record in (row.first.records or {}).items() if id in shared]
        for name in names:
            found, p = by_row[i].get(name), corrected.get((i, name))
            text = _difference_text(found, p, beside(measured(both, name), reference.first.n))
            cells += [Bold(text) if is_shown(found, p, alpha) else text, _seen(found)]
            if name in binary:
                cells.append(_counts_text(counts[i].get(name), corrected_counts.get((i, name))))
        table.append(cells)
    caption = f"Difference from {reference.label}: row less reference, paired"
    told = [*reasons(others, reference, names), *_carried(others, reference, names[0])]
    if explained:
        caption = f"{caption}, {_caption(others, reference, names, corrected, bool(binary))}"
        told.append(_how_to_read(reference, bool(corrected)))
    return [Table(caption, header, table), *map(Paragraph, told)]


def sign(name: str) -> str:
    """Which differences of a metric are better ones, for a header."""
    return "below 0 is better" if name in LOWER_IS_BETTER else "above 0 is better"


def is_shown(difference: Difference | None, p: float | None, alpha: float) -> bool:
    """Whether a difference is shown: its interval leaves out zero, and the corrected p is below `alpha`."""
    return (
        difference is not None and p is not None and p < alpha and not difference.low <= 0 <= difference.high
    )


def paired(
    row: Row, reference: Row, names: Sequence[str], confidence: float | None = None
) -> dict[str, Difference]:
    """Row minus reference, metric by metric, seeds averaged; without those that cannot be compared. Runs of
    equal seeds are paired.
    `confidence` of the intervals; None: the reference's."""
    first, second = (sorted(one.runs, key=seeds_of) for one in (row, reference))
    runs, by_seed = [*first, *second], [*map(seeds_of, first)] == [*map(seeds_of, second)]
    clusters = shared_clusters(runs)
    known: dict[str, Column] = {}
    for name in names if clusters else ():
        pair = statistics_of(runs, name, list(clusters)) if same_variant(runs, name) else None
        if pair is not None:
            split = len(row.runs)
            known[name] = Column(pair[1], pair[0][:split], pair[0][split:], by_seed)
    if not known:
        return {}
    intervals = estimates(
        list(known.values()),
        list(clusters.values()),
        resamples=int(setting(reference.first, "eval.resamples", Eval.resamples)),
        confidence=confidence or confidence_of(reference.first),
    )
    return {name: _in_range(name, one) for name, one in zip(known, intervals, strict=True)}


def _in_range(name: str, difference: Difference) -> Difference:
    """With an interval that ends where differences of the metric do: of a share at -1 and 1.

    The true difference lies there, so an interval that is cut holds it as often.
    """
    lowest, highest = within_range(name, (-math.inf, math.inf))
    most = highest - lowest
    return difference._replace(low=max(-most, difference.low), high=min(most, difference.high))


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
        how += f" (rows of several seeds: Student's t, each {one} and each seed left out in turn; "
        how += "runs of equal seeds are paired)"
    sentences = [
        f"n = {first.n} questions of {count or 'unknown'} {what}: "
        f"{confidence_of(first):.0%} intervals from {how}",
        _family(corrected)
        if corrected
        else f"No p is given{f' of fewer than {FEWEST} {what}' if count < FEWEST else ''}",
        f"Detectable: a true difference of this size would be found in {POWER:.0%} of such samples, before "
        "correction; a smaller one would often be missed",
    ]
    sentences += [
        f"{name} is {of} in bits per byte, question by question: it has an interval and no p of its own"
        for name, of in UNTESTED.items()
        if name in names
    ]
    if binary:
        sentences.append(
            "McNemar: questions that only this row and that only the reference answers rightly, and the "
            "exact p, which takes questions as independent, corrected over its column (Holm)"
        )
    return ". ".join(sentences)


def _how_to_read(reference: Row, tested: bool) -> str:
    """What is bold, and how the reference was chosen."""
    alpha = f"{1 - confidence_of(reference.first):.2g}"
    shown = (
        f"Bold: shown to differ, which takes an interval without 0 and a corrected p below {alpha}. "
        "Intervals are not corrected, so one may leave out 0 without anything being shown"
        if tested
        else "No difference is bold, because none is tested"
    )
    return (
        f"{shown}. The reference is {reference.system}; --reference SYSTEM sets another. Choose it before "
        "you look at the numbers."
    )


def _family(corrected: Mapping[tuple[int, str], float]) -> str:
    """How many comparisons each metric's p was corrected for."""
    sizes = sorted(Counter(name for _, name in corrected).values())
    several = f"{sizes[0]} to {sizes[-1]}" if sizes[0] < sizes[-1] else str(sizes[0])
    return f"p corrected over the {several} comparison{'s' * (several != '1')} of each metric (Holm)"


def _difference_text(difference: Difference | None, p: float | None, n: str) -> str:
    if difference is None:
        return ABSENT
    if difference.low == difference.high:  # one user, or equal answers: nothing to infer from
        return f"{difference.value:+.4f}{n}"
    text = f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
    return f"{text}{n}" if p is None else f"{text} {_p(p)}{n}"


def _seen(difference: Difference | None) -> str:
    return f"{difference.detectable:.4f}" if difference is not None and difference.detectable else ABSENT


def _counts_text(counts: Counts | None, p: float | None) -> str:
    return ABSENT if counts is None or p is None else f"{counts.gained} : {counts.lost} {_p(p)}"


def _p(p: float) -> str:
    return f"p={p:.3f}" if p >= 0.001 else "p<0.001"


def _carried(others: Sequence[Row], reference: Row, name: str) -> list[str]:
    """A sentence for each row of whose difference in the first metric one user has more than half."""
    sentences = []
    for row in others:
        clusters = shared_clusters([*row.runs, *reference.runs])
        pairs = [statistics_of(one.runs, name, list(clusters)) for one in (row, reference) if clusters]
        if not pairs or any(pair is None or pair[1] is not plain_mean for pair in pairs):
            continue
        first, second = (np.mean([part[:, 0] for part in pair[0]], axis=0) for pair in pairs if pair)
        users, owner = np.unique(list(clusters.values()), return_inverse=True)
        of_user = np.bincount(owner, np.nan_to_num(first - second))
        share = of_user.sum() and float((of_user / of_user.sum()).max())
        if share > 0.5 and len(users) >= FEWEST:
            sentences.append(
                f"One of {len(users)} users has {share:.0%} of the difference of {name} between {row.label} "
                f"and {reference.label}: its interval is too narrow."
            )
    return sentences


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
