"""From the rows of a check to a verdict: numbers first, then the sentences that they allow, and no other.

What is compared is fixed before anything is run: the chosen way to use the own history (`CHOSEN`) less no
documents, and less documents of one other user with the same search (`OTHER`). The second is needed because a
search may help with anybody's documents. A difference counts where its interval excludes zero and there are
ten users. The level of the interval depends on how often the data were checked before (`checking.looks`).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pbr_jax.base.files import write_text
from pbr_jax.base.types import Example
from pbr_jax.checking.looks import ONCE, Look
from pbr_jax.checking.rounds import ANSWERED, CHOSEN, NOTHING, OTHER, SEVERAL
from pbr_jax.corpus.store import Store
from pbr_jax.eval.differences import paired
from pbr_jax.eval.metrics import direction, plain_mean
from pbr_jax.eval.runs import Record, Row, Run, confidence_of, read_run
from pbr_jax.eval.significance import FEWEST, Difference, holm, paired_difference, turned

_DAY = 86400.0
_LEAST = 10  # questions of a group that is shown
_GROUPS = 5  # groups by a number, at most
_EACH = 20  # questions of such a group, on average
_LIKELIHOODS = ("target_nll", "target_bpb")

Answer = Literal["helps", "helps_like_any", "harms", "cannot_tell"]


class Group(NamedTuple):
    """Some questions: what the chosen row gains there over one other user's documents. `p`: corrected for all
    groups (Holm); None where there are fewer than ten users. `shown`: whether there is a gain."""

    name: str
    questions: int
    users: int
    gain: Difference
    p: float | None = None
    shown: bool = False


class Text(NamedTuple):
    """A question as it was asked, what the user wrote, the own document that stood first, and the gain over
    one other user's documents."""

    question: str
    target: str
    document: str
    gain: float


class Copies(NamedTuple):
    """How many questions have most words of the target in one document of the user's own history, and what
    the chosen row gains on the others; None where they are of fewer than ten users."""

    questions: int
    gain: Difference | None


class Measure(NamedTuple):
    """Another measure: the chosen row's and no documents' value, and the gains over none and
    one other user's."""

    name: str
    questions: int
    users: int
    nothing: float
    chosen: float
    gain: Difference
    beyond: Difference

    @property
    def worse(self) -> bool:
        """Whether the chosen row is significantly worse than no documents."""
        return self.users >= FEWEST and self.gain.high < 0


@dataclass(frozen=True)
class Verdict:
    """The result of a check. Differences are oriented so that higher is better.

    `gains`: each row minus no documents. `beyond`: each row minus one other user's documents. `top`: the
    share of the gain over another user's documents that the user with the largest part has; None: no gain.
    `needed`: questions with which the gains that decide would be shown; None: both are. `copies`: questions
    whose target is nearly contained in the user's history. `groups`: gains by division of the questions; an
    empty list if the questions are too few or too similar. `texts`: questions with the largest gains and then
    those with the largest losses. `cold`: questions without a history, which were not asked, and all
    questions. `seconds`: the time that was used and the time that was allowed. `data`, `folder` and `flags`:
    the name of the data, the folder of the runs, and the flags for benchmark and model in a command.
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
    confidence: float = 0.95
    look: Look = ONCE
    top: float | None = None
    cold: tuple[int, int] = (0, 0)
    price: tuple[float, float] | None = None
    copies: Copies | None = None
    measures: Sequence[Measure] = ()
    groups: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    texts: Sequence[Text] = ()
    notes: tuple[str, ...] = ()
    seconds: tuple[float, float] = (0.0, 0.0)
    data: str = ""
    folder: str = ""
    flags: tuple[str, ...] = ()

    @property
    def recommended(self) -> str:
        """The row to use: the chosen one if it is in `best`, otherwise fused, otherwise the first of them."""
        return next((name for name in (CHOSEN, "fused") if name in self.best), self.best[0])

    def write(self, path: Path) -> None:
        """Writes the numbers as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1))


def verdict(
    folders: Mapping[str, Path], store: Store, answered: Mapping[str, Path] | None = None, look: Look = ONCE
) -> Verdict:
    """The verdict on the runs of one sample; `store` holds its questions with their histories, `answered`
    are the runs that wrote answers, where there are any."""
    runs = {name: read_run(folder) for name, folder in folders.items()}
    measure = measure_of(runs[CHOSEN])
    confidence = look.confidence(confidence_of(runs[CHOSEN]))
    rows = {name: Row(name, (run,)) for name, run in runs.items()}
    spoken = {name: Row(name, (read_run(folder),)) for name, folder in (answered or {}).items()}
    gains, beyond = (
        {n: one for n in rows if n != other and (one := less(rows, n, other, measure, confidence))}
        for other in (NOTHING, OTHER)
    )
    questions, users = _measured(runs[CHOSEN], measure)
    if CHOSEN not in gains or CHOSEN not in beyond:
        raise ValueError(f"the runs of a check have no {measure} in common")
    decisive = gains[CHOSEN], beyond[CHOSEN]
    still_open = [needed(one, questions) or 0 for one in decisive if one.low <= 0 <= one.high]
    return Verdict(
        answer=answer(*decisive, users),
        measure=measure,
        questions=questions,
        users=users,
        values={name: run.metrics[measure] for name, run in runs.items()},
        gains=gains,
        beyond=beyond,
        tokens={name: _a_question(run, run.counts.get("shown_tokens", 0.0)) for name, run in runs.items()},
        milliseconds={  # without documents nothing is searched
            name: (name != NOTHING) * _a_question(run, 1000 * run.seconds.get("rank", 0))
            for name, run in runs.items()
        },
        best=best(rows, measure, users),
        needed=max(still_open, default=0) or None,
        confidence=confidence,
        look=look,
        top=top_share(runs, measure),
        copies=copies(runs, measure, confidence) if measure in _LIKELIHOODS else None,
        measures=[
            *_measures(rows, confidence, measure),
            *_measures(spoken, confidence, measure, "target_bpb"),
        ],
        groups=groups(runs, measure, store, confidence),
    )


def less(
    rows: Mapping[str, Row], name: str, other: str, measure: str, confidence: float | None = None
) -> Difference | None:
    """A row less another, turned so that more is better; None where they have no questions in common."""
    difference = paired(rows[name], rows[other], [measure], confidence).get(measure)
    return None if difference is None else turned(difference, direction(measure))


def _measures(rows: Mapping[str, Row], confidence: float, *without: str) -> list[Measure]:
    """The likelihood in bits a byte, and the task's metrics, as far as they were computed."""
    if not rows.keys() >= ANSWERED.keys():
        return []
    run, found = rows[CHOSEN].first, []
    for name in dict.fromkeys(("target_bpb", *run.task_metrics)):
        if name in without or any(name not in rows[row].first.metrics for row in ANSWERED):
            continue
        gain, beyond = (less(rows, CHOSEN, other, name, confidence) for other in (NOTHING, OTHER))
        if gain is not None and beyond is not None:
            nothing = rows[NOTHING].first.metrics[name]
            found.append(Measure(name, *_measured(run, name), nothing, run.metrics[name], gain, beyond))
    return found


def _measured(run: Run, name: str) -> tuple[int, int]:
    """How many questions, and how many users, have a metric; all where no single question has it."""
    records = list((run.records or {}).values())
    having = [record for record in records if name in record.metrics] or records
    return len(having), len({record.cluster for record in having})


def measure_of(run: Run) -> str:
    """The likelihood of what the user wrote, where it was scored, else the task's first metric."""
    return "target_nll" if "target_nll" in run.metrics else run.task_metrics[0]


def answer(gain: Difference, beyond: Difference, users: int) -> Answer:
    """What the intervals allow to be said: `gain` over no documents, `beyond` over one other user's."""
    if users < FEWEST:
        return "cannot_tell"
    if gain.high < 0:
        return "harms"
    if gain.low > 0:
        return "helps" if beyond.low > 0 else "helps_like_any"
    return "cannot_tell"


def needed(difference: Difference, questions: int) -> int | None:
    """Questions with which a difference of this size would be found in 8 of 10 samples; None: none would.

    The reach of an interval falls with the root of the number of questions.
    """
    if not difference.value or difference.detectable is None:
        return None
    return int(np.ceil(questions * (difference.detectable / difference.value) ** 2))


def best(rows: Mapping[str, Row], measure: str, users: int) -> tuple[str, ...]:
    """The own rows that no other one is surely better than, by their means; of a few users all."""
    own = [name for name in rows if name not in (NOTHING, OTHER, SEVERAL)]
    leader, *others = sorted(own, key=lambda name: -direction(measure) * rows[name].first.metrics[measure])
    kept = [leader]
    for name in others:
        found = less(rows, leader, name, measure)
        if users < FEWEST or found is None or found.low <= 0:
            kept.append(name)
    return tuple(kept)


def copies(runs: Mapping[str, Run], measure: str, confidence: float) -> Copies:
    """The questions whose target the user's own history nearly holds, and the gain on the others."""
    chosen, nothing = runs[CHOSEN].records or {}, runs[NOTHING].records or {}
    shared = [name for name in chosen if name in nothing and measure in chosen[name].metrics]
    rest = [name for name in shared if not chosen[name].near]
    users = len({chosen[name].cluster for name in rest})
    gain = _gain(rest, chosen, nothing, measure, confidence) if users >= FEWEST else None
    return Copies(len(shared) - len(rest), gain)


def _gain(
    questions: Sequence[str],
    chosen: Mapping[str, Record],
    control: Mapping[str, Record],
    measure: str,
    confidence: float,
) -> Difference:
    """The chosen row less the control on these questions, turned so that more is better."""
    first, second = (
        np.array([[one[name].metrics[measure]] for name in questions]) for one in (chosen, control)
    )
    clusters = [chosen[name].cluster for name in questions]
    difference = paired_difference(first, second, clusters, plain_mean, confidence=confidence)
    return turned(difference, direction(measure))


def single_gains(runs: Mapping[str, Run], measure: str) -> dict[str, float]:
    """What the chosen row gains over one other user's documents on each question, by its id."""
    chosen, other = runs[CHOSEN].records or {}, runs[OTHER].records or {}
    both = [name for name in chosen if measure in chosen[name].metrics and name in other]
    return {
        name: direction(measure) * (chosen[name].metrics[measure] - other[name].metrics[measure])
        for name in both
        if measure in other[name].metrics
    }


def top_share(runs: Mapping[str, Run], measure: str) -> float | None:
    """The share of the gain over one other user's documents that the user with the largest part has. It may
    exceed 1, where others lose. None where there is no gain."""
    records, of_user = runs[CHOSEN].records or {}, defaultdict[str, float](float)
    for name, gain in single_gains(runs, measure).items():
        of_user[records[name].cluster] += gain
    total = sum(of_user.values())
    return max(of_user.values()) / total if total > 0 else None


def groups(runs: Mapping[str, Run], measure: str, store: Store, confidence: float) -> dict[str, list[Group]]:
    """What the chosen row gains over one other user's documents by length and age of the history, and by
    category. A division with fewer than two groups holds none."""
    chosen, other = runs[CHOSEN].records or {}, runs[OTHER].records or {}
    measured = single_gains(runs, measure)
    asked = [e for e in store.examples() if e.id in measured]
    lengths = [float(len(store.visible(e, e.user_id))) for e in asked]
    ages = [_age(store, e) for e in asked]

    def group(name: str, members: Sequence[Example]) -> Group | None:
        if len(members) < _LEAST:
            return None
        gain = _gain([e.id for e in members], chosen, other, measure, confidence)
        users = len({chosen[e.id].cluster for e in members})
        return Group(name, len(members), users, gain, gain.p_value if users >= FEWEST else None)

    divided = {
        "documents in the history": _parts(asked, lengths, group),
        "days since the newest document": _parts(asked, ages, group),
        "category": [
            group(name, [e for e in asked if e.category == name])
            for name in sorted({e.category for e in asked} - {""})
        ],
    }
    kept = {title: [one for one in every if one is not None] for title, every in divided.items()}
    return corrected({title: every if len(every) > 1 else [] for title, every in kept.items()}, confidence)


def corrected(groups: Mapping[str, Sequence[Group]], confidence: float) -> dict[str, list[Group]]:
    """The groups with p corrected for all of them, and whether a gain is shown in each."""
    tested = iter(holm([one.p for some in groups.values() for one in some if one.p is not None]))

    def told(one: Group) -> Group:
        p = None if one.p is None else next(tested)
        return one._replace(p=p, shown=p is not None and p < 1 - confidence and one.gain.value > 0)

    return {title: [told(one) for one in some] for title, some in groups.items()}


def _parts(
    examples: Sequence[Example],
    values: Sequence[float],
    group: Callable[[str, Sequence[Example]], Group | None],
) -> list[Group | None]:
    """Up to five groups of about one size by a value; questions without it are left out."""
    there = [(value, e) for value, e in zip(values, examples, strict=True) if np.isfinite(value)]
    if not there:
        return []
    count = min(_GROUPS, max(2, len(there) // _EACH))
    edges = np.unique(
        np.quantile([value for value, _ in there], np.linspace(0, 1, count + 1), method="lower")
    )
    found = []
    for low, high in zip(edges, [*edges[1:-1], np.inf]):
        members = [(value, e) for value, e in there if low <= value < high]
        last = max(value for value, _ in members)
        name = f"{low:.0f}" if f"{low:.0f}" == f"{last:.0f}" else f"{low:.0f} to {last:.0f}"
        found.append(group(name, [e for _, e in members]))
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
