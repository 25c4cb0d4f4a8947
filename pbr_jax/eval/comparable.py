"""What rows of a table share: whether they may be set against each other, and where their settings differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pbr_jax.eval import dialogue
from pbr_jax.eval.metrics import plain_mean, text_metric
from pbr_jax.eval.runs import Record, Row, Run
from pbr_jax.eval.significance import Finish

ABSENT = "–"
"""What stands where there is nothing to say."""

_TOLD = ("llm.", "encoder.", "prompt.", "generate.", "retrieve.k", "select.k", "select.llm.model",
         "neighbours.m", "benchmark.training", "limit_training", "limit_history",
         "feedback.limit")  # fmt: skip
"""Fields, and sections, that every row tells where rows differ in them: with another model, budget or
number of documents a difference between systems may be theirs."""

_UNTOLD = frozenset(
    {"llm.batch_size", "llm.tensor_parallel", "llm.offline", "llm.key_variable", "llm.concurrency",
     "llm.timeout", "llm.retries", "llm.price_prompt", "llm.price_completion", "encoder.batch_tokens",
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
    known = [run.records for run in runs if run.records is not None]
    owners = [{id: (r.user_id, r.unit) for id, r in records.items()} for records in known]
    if len({run.n for run in runs}) > 1 or any(one != owners[0] for one in owners):
        reasons.append("did not score the same examples")
    elif any(len({records[id].target for records in known} - {None}) > 1 for id in (known or [{}])[0]):
        reasons.append("were scored against different targets")  # None: no text was kept, or no target
    return reasons


def same_variant(runs: Sequence[Run], name: str) -> bool:
    """Whether all these runs compute the metric by one definition."""
    return len({run.variants.get(name) for run in runs}) == 1


def shared_clusters(runs: Sequence[Run]) -> dict[str, str]:
    """`Record.cluster` of each scored example, sorted by id.

    Empty where runs cannot be compared, or hold no examples.
    """
    if obstacles(runs) or any(run.records is None for run in runs):
        return {}
    return {id: record.cluster for id, record in sorted((runs[0].records or {}).items())}


def statistics_of(
    runs: Sequence[Run], name: str, ids: Sequence[str]
) -> tuple[list[np.ndarray], Finish] | None:
    """Statistics `[n, s]` of each run and how they end in a value; None where a run lacks the metric."""
    records = [[(run.records or {})[id] for id in ids] for run in runs]
    if name in dialogue.METRICS and all(name in run.metrics for run in runs):
        return [_over_frames(name, column) for column in records], dialogue.mean_over_frames
    if all(name in record.metrics for column in records for record in column):
        return [np.array([[record.metrics[name]] for record in column]) for column in records], plain_mean
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
