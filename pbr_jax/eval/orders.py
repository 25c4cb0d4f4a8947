"""What the order of the same documents in the prompt is worth: a method's own against orders drawn by lot.

PURPLE (Du et al., 2026), Figure 4: in how many questions the own order is the best of six, chance one sixth.
"""

import json
from collections.abc import Sequence

import numpy as np

from pbr_jax.eval.comparable import shared_clusters
from pbr_jax.eval.metrics import LOWER_IS_BETTER, plain_mean
from pbr_jax.eval.render import Block, Cell, Table
from pbr_jax.eval.runs import UNTOLD, Row, Run
from pbr_jax.eval.significance import Column, estimates

_ORDER = ("prompt.order", "prompt.order_seed")


def orders(rows: Sequence[Row], names: Sequence[str]) -> list[Block]:
    """The table of runs that differ in the order of the prompt's documents alone; nothing where none do."""
    groups: dict[str, list[Run]] = {}
    for row in rows:
        options = {k: v for k, v in row.first.config.items() if k not in UNTOLD and k not in _ORDER}
        groups.setdefault(json.dumps([row.system, options], sort_keys=True), []).append(row.first)
    lines, most, what = [], 0, rows[0].first.clusters if rows else "users"
    for runs in groups.values():
        own = [run for run in runs if run.config.get("prompt.order") == "best_first"]
        drawn = [run for run in runs if run.config.get("prompt.order") == "random"]
        if len(own) != 1 or not drawn or not (clusters := shared_clusters([*own, *drawn])):
            continue
        most = len(drawn) + 1
        cells = [_share(own[0], drawn, clusters, name) for name in names]
        lines.append([own[0].system, str(most), f"{1 / most:.1%}", str(len(clusters)), *cells])
    if not lines:
        return []
    caption = (
        "In how many questions a method's own order of the documents is the best, among orders of the same "
        f"documents drawn by lot (ties are split), with 95 % intervals over {what}"
    )
    header = ["run", "orders", "chance", "n", *names]
    return [Table(caption, header, [[Cell(text) for text in line] for line in lines])]


def _share(own: Run, drawn: Sequence[Run], clusters: dict[str, str], name: str) -> str:
    shares = best_shares(
        np.array([[_value(run, id, name) for run in (own, *drawn)] for id in clusters]),
        name in LOWER_IS_BETTER,
    )
    if np.isnan(shares).any():
        return "–"
    share = estimates([Column(plain_mean, [shares[:, None]])], list(clusters.values()))[0]
    sure = f" [{share.low:.1%}, {share.high:.1%}]" if share.low < share.high else ""
    return f"{share.value:.1%}{sure}"


def _value(run: Run, id: str, name: str) -> float:
    return (run.records or {})[id].metrics.get(name, float("nan"))


def best_shares(values: np.ndarray, lower: bool) -> np.ndarray:
    """`[n, orders] -> [n]`: 1 where the first is the best, a part of it where others are as good, else 0."""
    signed = -values if lower else values
    best = signed == signed.max(axis=1, keepdims=True)
    shares = best[:, 0] / np.maximum(best.sum(axis=1), 1)
    return np.where(np.isnan(values).any(axis=1), np.nan, shares)
