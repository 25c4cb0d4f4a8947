"""Paired differences of LUF's ablation over the second half of the stream, for each order of arrival.

    pbr-jax sweep ablations/luf_small --benchmark.name xquad --benchmark.root FOLDER --benchmark.split de \
        --benchmark.passages en --out DIR
    python benchmarks/luf.py DIR [--metric recall@5] [--over second_half]

Each order has rows `frozen` and `centred` of its own. Every other row of that order is compared
with both, paired by question. Intervals are over articles, 95 %, as in `pbr_jax.eval.significance`.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.significance import Column, Difference, estimates

Run = dict[str, dict[str, Any]]
"""The lines of predictions.jsonl by the questions' ids."""


def read(folder: Path) -> Run:
    with (folder / "predictions.jsonl").open(encoding="utf-8") as file:
        return {record["id"]: record for record in map(json.loads, file)}


def chosen(run: Run, over: str) -> list[str]:
    """The ids of the questions that are compared: scored ones, of a part of the stream or of all of it."""
    return [id for id, one in run.items() if one["metrics"] and (over == "all" or over in one["over"])]


def difference(run: Run, reference: Run, metric: str, over: str) -> tuple[float, Difference]:
    """The run's value, and it less the reference."""
    ids = chosen(run, over)
    first, second = (np.array([[one[id]["metrics"][metric]] for id in ids]) for one in (run, reference))
    clusters = [run[id].get("unit") or run[id]["user_id"] for id in ids]
    (found,) = estimates([Column(plain_mean, [first], [second])], clusters)
    return float(first.mean()), found


def table(orders: dict[str, dict[str, Path]], metric: str, over: str) -> None:
    for order, folders in sorted(orders.items()):
        print(
            f"\n{metric}, {over}, {order}\n| row | {metric} | less frozen | less centred |\n|---|---|---|---|"
        )
        runs = {row: read(folder) for row, folder in folders.items()}
        for row, run in runs.items():
            cells = []
            for reference in ("frozen", "centred"):
                value, less = difference(run, runs[reference], metric, over)
                cells.append(
                    "" if row == reference else f"{less.value:+.3f} [{less.low:+.3f}, {less.high:+.3f}]"
                )
            print(f"| {row} | {value:.3f} | {cells[0]} | {cells[1]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metric", default="recall@5")
    parser.add_argument("--over", choices=("second_half", "all"), default="second_half")
    arguments = parser.parse_args()
    orders: dict[str, dict[str, Path]] = defaultdict(dict)
    for results in sorted(arguments.folder.glob("*/results.json")):
        system = json.loads(results.read_text(encoding="utf-8"))["system"]
        if named := re.fullmatch(r"(.+), (mixed|by article) (\d+)", system):
            orders[f"{named[2]} {named[3]}"][named[1]] = results.parent
    table(orders, arguments.metric, arguments.over)


if __name__ == "__main__":
    main()
