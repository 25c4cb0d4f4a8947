"""What a reader of a table must know of a row: answers that could not be read, stages made elsewhere.

`unreadable_answers` are predictions that name no label or number, hold no state, or have no text.
`expand_failures_<kind>` are answers that should have expanded a query, and `expand_fallbacks` the questions
that had one such.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pbr_jax.eval.runs import Row, Run

MARK = "†"  # of rows that are mostly not what their name says
_TOLERATED = 0.2  # share of questions that may fall back unmarked
_FAILURES = "expand_failures_"
_PATHS = 4  # folders that one note names


def counts(row: Row) -> defaultdict[str, float]:
    """What the runs of a row counted, together; 0 for what none did."""
    total: defaultdict[str, float] = defaultdict(float)
    for run in row.runs:
        for name, count in run.counts.items():
            total[name] += count
    return total


def unreadable_answers(row: Row) -> str:
    """The note on predictions that cannot be read; "" where all can."""
    totals = counts(row)
    unread, scored = totals["unreadable_answers"], totals["examples"] - totals["unscored"]
    if not unread:
        return ""
    share = f"{row.label}: {unread:.0f} of {scored:.0f} answers ({unread / max(scored, 1):.1%})"
    what = "name no label or number, hold no state, or have no text"
    return f"{share} {what}; the worst is scored, of a state the empty one."


def label(row: Row) -> str:
    """The row's label, marked where more than a fifth of its questions fell back, or it read the answers."""
    text = f"{row.label} {MARK}" if _share(row) > _TOLERATED else row.label
    return f"{text} (a ceiling: it reads the answers)" if row.first.ceiling else text


def fallbacks(row: Row) -> str:
    """The note on a row that `label` marks; "" for others."""
    if _share(row) <= _TOLERATED:
        return ""
    questions = f"{counts(row)['examples']:.0f} questions ({_share(row):.1%})"
    return (
        f"{MARK} {row.label}: an answer of the language model could not be used in "
        f"{counts(row)['expand_fallbacks']:.0f} of {questions}; the query, or as the config says the raw "
        "answer, stands in its place there."
    )


def _share(row: Row) -> float:
    totals = counts(row)
    return totals["expand_fallbacks"] / max(totals["examples"], 1)


def failures(row: Row) -> str:
    """How many answers of each kind failed: "utterances 12, reasoning 3"; "" where none did."""
    totals = counts(row)
    kinds = (name.removeprefix(_FAILURES) for name in totals if name.startswith(_FAILURES))
    return ", ".join(f"{kind} {totals[_FAILURES + kind]:.0f}" for kind in kinds)


def made_elsewhere(runs: Sequence[Run]) -> list[str]:
    """The notes on stages that were made at another commit, or with other versions; equal ones together."""
    paths_by_process: dict[str, list[str]] = {}
    for run in runs:
        if words := _made_elsewhere(run):
            paths_by_process.setdefault(words, []).append(str(run.path))
    return [f"{_some(paths)}: {words}" for words, paths in paths_by_process.items()]


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:_PATHS]) + (f" and {len(paths) - _PATHS} more" if len(paths) > _PATHS else "")


def _made_elsewhere(run: Run) -> str:
    labels_by_process: dict[str, list[str]] = {}
    for label, processes in run.fingerprint.get("stages", {}).items():
        words = " and ".join(_process(one, run.fingerprint) for one in processes) or "an unrecorded commit"
        labels_by_process.setdefault(words, []).append(label)
    parts = [f"{', '.join(labels)} at {words}" for words, labels in labels_by_process.items()]
    here = _process(run.fingerprint, {})
    return f"computed {'; '.join(parts)}; the rest at {here}." if parts else ""


def _process(process: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """A process in words: its commit, and the versions that are not `known`."""
    before = known.get("versions", {})
    rest = [f"{n} {v}" for n, v in process.get("versions", {}).items() if known and before.get(n) != v]
    return f"commit {process.get('commit') or 'unknown'}" + (f" with {', '.join(rest)}" if rest else "")
