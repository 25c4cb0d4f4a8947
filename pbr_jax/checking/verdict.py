"""From the rows of a check to a verdict: numbers first, then the sentences that they allow, and no other.

What is compared is fixed before anything is run: the chosen way to use the own history (`CHOSEN`) less no
documents, and less other users' documents. Nothing is picked by its result. A difference counts where its
interval excludes zero and there are ten users; the interval is of `pbr_jax.eval.significance`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pbr_jax.checking.rounds import CHOSEN, NOTHING, OTHERS
from pbr_jax.corpus.store import Store
from pbr_jax.eval.differences import paired
from pbr_jax.eval.metrics import LOWER_IS_BETTER, plain_mean
from pbr_jax.eval.runs import Row, Run, read_run
from pbr_jax.eval.significance import FEWEST, Difference, paired_difference
from pbr_jax.files import write_text
from pbr_jax.types import Example

_DAY = 86400.0
_LEAST = 10  # questions of a group that is shown

Answer = Literal["helps", "helps_like_any", "does_not", "harms", "cannot_tell"]


class Group(NamedTuple):
    """Some questions: what the chosen row gains over no documents there."""

    name: str
    questions: int
    gain: Difference


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    `gains` are less no documents by row, `beyond` less others' documents; both are turned so that more is
    better. `needed`: questions that would tell a gain of this size.
    """

    answer: Answer
    measure: str
    questions: int
    users: int
    values: Mapping[str, float]
    gains: Mapping[str, Difference]
    beyond: Mapping[str, Difference]
    tokens: Mapping[str, float]
    milliseconds: Mapping[str, float]
    best: tuple[str, ...]
    needed: int | None
    groups: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """The numbers as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1))


def verdict(folders: Mapping[str, Path], store: Store) -> Verdict:
    """The verdict on the runs of one sample; `store` holds its questions with their histories."""
    runs = {name: read_run(folder) for name, folder in folders.items()}
    measure = measure_of(runs[CHOSEN])
    rows = {name: Row(name, (run,)) for name, run in runs.items()}
    sign = -1.0 if measure in LOWER_IS_BETTER else 1.0

    def less(reference: str) -> dict[str, Difference]:
        found = {name: paired(row, rows[reference], [measure]).get(measure) for name, row in rows.items()}
        return {
            name: turned(one, sign) for name, one in found.items() if one is not None and name != reference
        }

    gains, beyond = less(NOTHING), less(OTHERS)
    users = len({record.cluster for record in (runs[CHOSEN].records or {}).values()})
    return Verdict(
        answer=answer(gains[CHOSEN], beyond[CHOSEN], users),
        measure=measure,
        questions=runs[CHOSEN].n,
        users=users,
        values={name: run.metrics[measure] for name, run in runs.items()},
        gains=gains,
        beyond=beyond,
        tokens={name: _a_question(run, run.counts.get("shown_tokens", 0.0)) for name, run in runs.items()},
        milliseconds={
            name: _a_question(run, 1000 * run.seconds.get("rank", 0)) for name, run in runs.items()
        },
        best=best(rows, measure, sign, users),
        needed=needed(gains[CHOSEN], runs[CHOSEN].n),
        groups=groups(runs, measure, sign, store),
    )


def measure_of(run: Run) -> str:
    """The likelihood of what the user wrote, where it was scored, else the task's first metric."""
    return "target_nll" if "target_nll" in run.metrics else run.task_metrics[0]


def answer(gain: Difference, beyond: Difference, users: int) -> Answer:
    """What the two intervals allow to be said."""
    if users < FEWEST:
        return "cannot_tell"
    if gain.high < 0:
        return "harms"
    if gain.low > 0 and beyond.low > 0:
        return "helps"
    if gain.low > 0:
        return "helps_like_any" if beyond.low <= 0 <= beyond.high or beyond.high < 0 else "helps"
    return "cannot_tell"


def turned(difference: Difference, sign: float) -> Difference:
    """The same difference of a measure where more is better."""
    if sign > 0:
        return difference
    return difference._replace(value=-difference.value, low=-difference.high, high=-difference.low)


def needed(difference: Difference, questions: int) -> int | None:
    """Questions with which a difference of this size would be found in 8 of 10 samples; None: none would.

    The reach of an interval falls with the root of the number of questions.
    """
    if not difference.value or difference.detectable is None:
        return None
    return int(np.ceil(questions * (difference.detectable / difference.value) ** 2))


def best(rows: Mapping[str, Row], measure: str, sign: float, users: int) -> tuple[str, ...]:
    """The own rows that no other one is surely better than, by their means; of a few users all."""
    own = {name: row for name, row in rows.items() if name not in (NOTHING, OTHERS)}
    leader, *others = sorted(own, key=lambda name: -sign * own[name].first.metrics[measure])
    kept = [leader]
    for name in others:
        found = paired(own[leader], own[name], [measure]).get(measure)
        if users < FEWEST or found is None or turned(found, sign).low <= 0:
            kept.append(name)
    return tuple(kept)


def groups(runs: Mapping[str, Run], measure: str, sign: float, store: Store) -> dict[str, list[Group]]:
    """What the chosen row gains over no documents by length and age of the history, and by category."""
    chosen, nothing = runs[CHOSEN].records or {}, runs[NOTHING].records or {}
    known = [e for e in store.examples() if {e.id} <= chosen.keys() & nothing.keys()]
    known = [e for e in known if measure in chosen[e.id].metrics and measure in nothing[e.id].metrics]
    lengths = [float(len(store.visible(e, e.user_id))) for e in known]
    ages = [_age(store, e) for e in known]

    def group(name: str, members: Sequence[Example]) -> Group | None:
        if len(members) < _LEAST:
            return None
        first, second = (
            np.array([[one[e.id].metrics[measure]] for e in members]) for one in (chosen, nothing)
        )
        clusters = [chosen[e.id].cluster for e in members]
        gain = turned(paired_difference(first, second, clusters, plain_mean), sign)
        return Group(name, len(members), gain)

    found = {
        "documents in the history": _thirds(known, lengths, group, "{:.0f}"),
        "days since the newest document": _thirds(known, ages, group, "{:.0f}"),
        "category": [
            group(name, [e for e in known if e.category == name])
            for name in sorted({e.category for e in known} - {""})
        ],
    }
    kept = {title: [one for one in some if one is not None] for title, some in found.items()}
    return {title: some for title, some in kept.items() if len(some) > 1}


def _thirds(
    examples: Sequence[Example],
    values: Sequence[float],
    group: Callable[[str, Sequence[Example]], Group | None],
    form: str,
) -> list[Group | None]:
    """Three groups of about one size by a value; questions without it are left out."""
    there = [(value, e) for value, e in zip(values, examples, strict=True) if np.isfinite(value)]
    if not there:
        return []
    edges = np.quantile([value for value, _ in there], [0, 1 / 3, 2 / 3, 1])
    found = []
    for low, high, last in zip(edges, edges[1:], (False, False, True)):
        members = [e for value, e in there if low <= value < high or (last and value == high)]
        found.append(group(f"{form.format(low)} to {form.format(high)}", members))
    return found


def _age(store: Store, example: Example) -> float:
    """Days from the newest visible document to the question; NaN where either is not dated."""
    times = store.times[store.visible(example, example.user_id)]
    times = times[np.isfinite(times)]
    if example.time is None or not len(times):
        return float("nan")
    return (example.time - float(times.max())) / _DAY


def _a_question(run: Run, total: float) -> float:
    return total / max(run.counts.get("examples", run.n), 1)
