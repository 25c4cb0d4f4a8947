"""The tables of a report, and the notes on their rows.

Of a row, `unreadable_answers` counts predictions that name no label or number, hold no state, or have no
text; `expand_failures_<kind>` answers that should have expanded a query, and `expand_fallbacks` the questions
that had one such."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pbr_jax.eval import plots
from pbr_jax.eval.differences import ABSENT, settings, shared_clusters, statistics_of
from pbr_jax.eval.evaluate import JUDGE_METRICS, ONE_ANSWER, OTHER
from pbr_jax.eval.metrics import LOWER_IS_BETTER, plain_mean, within_range
from pbr_jax.eval.overlap import COPIED, COPIED_WORDS
from pbr_jax.eval.render import Block, Figure, Paragraph, Table
from pbr_jax.eval.runs import UNTOLD, Category, Record, Row, Run, beside, confidence_of, measured, setting
from pbr_jax.eval.significance import FEW, Column, estimates
from pbr_jax.options import Eval

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
    text = f"{row.label} {MARK}" if _fallback_share(row) > _TOLERATED else row.label
    return f"{text} (a ceiling: it reads the answers)" if row.first.ceiling else text


def fallbacks(row: Row) -> str:
    """The note on a row that `label` marks; "" for others."""
    if _fallback_share(row) <= _TOLERATED:
        return ""
    questions = f"{counts(row)['examples']:.0f} questions ({_fallback_share(row):.1%})"
    return (
        f"{MARK} {row.label}: an answer of the language model could not be used in "
        f"{counts(row)['expand_fallbacks']:.0f} of {questions}; the query, or as the config says the raw "
        "answer, stands in its place there."
    )


def _fallback_share(row: Row) -> float:
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


Interval = tuple[float, float]


def mean(row: Row, name: str) -> float | None:
    """The metric of a row, averaged over its seeds; None where a run lacks it."""
    return _mean([run.metrics for run in row.runs], name)


def intervals(row: Row, names: Sequence[str], confidence: float) -> dict[str, Interval]:
    """Intervals over clusters, and over seeds where a row has several; none where nothing can be inferred.

    They are computed from the examples, so that all rows' are of one kind; where a folder holds no examples,
    they are those of its results.json, and several seeds have none.
    """
    clusters = shared_clusters(row.runs)
    columns = {name: statistics_of(row.runs, name, list(clusters)) for name in names} if clusters else {}
    known = {name: Column(pair[1], pair[0]) for name, pair in columns.items() if pair is not None}
    known_intervals = dict(row.first.intervals) if len(row.runs) == 1 else {}
    if known:
        computed = estimates(
            list(known.values()),
            list(clusters.values()),
            resamples=int(setting(row.first, "eval.resamples", Eval.resamples)),
            confidence=confidence,
            seed=int(setting(row.first, "seed", 0.0)),
        )
        pairs = ((one.low, one.high) for one in computed)
        known_intervals |= {name: within_range(name, pair) for name, pair in zip(known, pairs, strict=True)}
    return {name: pair for name, pair in known_intervals.items() if pair[0] < pair[1]}


def values(rows: Sequence[Row], names: Sequence[str], *, explained: bool = True) -> Table:
    """Every row's metrics, what they were computed on, and the settings in which rows differ.

    `explained`: False where the section has said before how intervals come about.
    """
    confidence = confidence_of(rows[0].first)
    columns = settings(rows)
    table = []
    for i, row in enumerate(rows):
        known = intervals(row, names, confidence)
        texts = [label(row), *(columns[field][i] for field in columns), str(row.first.n), _count(row)]
        of_all = [*(row.first.records or {}).values()]
        texts += [
            _text([run.metrics for run in row.runs], name, known.get(name))
            + beside(measured(of_all, name), row.first.n)
            for name in names
        ]
        table.append(texts)
    several = any(len(row.runs) > 1 for row in rows)
    what = rows[0].first.clusters
    caption = _caption(names, confidence, several, what) if explained else _better(names)
    return Table(caption, ["run", *columns, "n", what, *names], table)


def absences(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Why rows lack measures that others have, a sentence for each reason and row."""
    found = []
    for row in rows:
        lacking = [name for name in names if mean(row, name) is None]
        for why in dict.fromkeys(_why_absent(row.first, name) for name in lacking):
            own = [name for name in lacking if _why_absent(row.first, name) == why]
            found.append(f"{row.label} has no {', '.join(own)}: {why}.")
    return found


def _why_absent(run: Run, name: str) -> str:
    config = run.config
    if name.startswith("target_"):
        if config.get("eval.likelihood") == "off":
            return "eval.likelihood is off"
        if config.get("llm.backend") == "http" and config.get("llm.log_probs", "none") == "none":
            return "the server gives no log-probabilities (llm.log_probs is none)"
        return "no likelihood of the targets was computed"
    if "@" in name:
        return "it ranks no documents" if config.get("retrieve.method") == "none" else "it was not computed"
    if config.get("generate.method") == "none":
        return "it writes no answers (generate.method is none)"
    return "it was not computed, or not under every seed"


def categories(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """Every row's metrics by category; nothing where examples have no categories."""
    groups = [[run.categories for run in row.runs] for row in rows]
    return _by(rows, names, "category", groups, lambda record: (record.category,))


def parts(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """Every row's metrics by part of its stream; nothing where no run is a stream."""
    groups = [[run.over for run in row.runs] for row in rows]
    return _by(rows, names, "part of the stream", groups, lambda record: record.over)


def _by(
    rows: Sequence[Row],
    names: Sequence[str],
    kind: str,
    groups: list[list[dict[str, Category]]],
    groups_of: Callable[[Record], Sequence[str]],
) -> list[Table]:
    """A line for each row and group of its questions. `groups`: of the runs of each row."""
    table = []
    for row, of_row in zip(rows, groups, strict=True):
        for group in dict.fromkeys(name for run in of_row for name in run):
            here = [run[group] for run in of_row if group in run]
            own = here[0].intervals if len(here) == 1 else {}
            of_group = [one for one in (row.first.records or {}).values() if group in groups_of(one)]
            texts = (
                _text([one.metrics for one in here], name, _with_width(own.get(name)))
                + beside(measured(of_group, name), here[0].n)
                for name in names
            )
            count = ABSENT if here[0].users is None else str(here[0].users)
            table.append([row.label, group, str(here[0].n), count, *texts])
    what = rows[0].first.clusters
    caption = (
        f"By {kind}, with {confidence_of(rows[0].first):.0%} intervals over the {what} of each; "
        "± is the standard deviation over seeds"
    )
    return [Table(caption, ["run", kind, "n", what, *names], table)] if table else []


def _caption(names: Sequence[str], confidence: float, several: bool, what: str) -> str:
    one = what.removesuffix("s")
    caption = (
        f"Metrics with {confidence:.0%} intervals over {what}: a bootstrap from {FEW} {what} on, Student's t "
        f"with fewer (each {one} left out in turn)"
    )
    if several:
        caption += (
            "; where a run was repeated under several seeds: mean ± standard deviation over seeds, and over "
            f"{what} and seeds Student's t (each {one} and each seed left out in turn)"
        )
    return f"{caption}. {_better(names)}"


def _better(names: Sequence[str]) -> str:
    lower = [name for name in names if name in LOWER_IS_BETTER]
    return f"Lower is better for {' and '.join(lower)}." if lower else "Higher is better."


def _mean(metrics: Sequence[dict[str, float]], name: str) -> float | None:
    known = [one[name] for one in metrics if name in one]
    return statistics.fmean(known) if known and len(known) == len(metrics) else None


def _text(metrics: Sequence[dict[str, float]], name: str, interval: Interval | None) -> str:
    value = _mean(metrics, name)
    if value is None:
        return ABSENT
    sure = "" if interval is None else f" [{interval[0]:.4f}, {interval[1]:.4f}]"
    if len(metrics) == 1:
        return f"{value:.4f}{sure}"
    deviation = statistics.stdev(one[name] for one in metrics)
    return f"{value:.4f} ± {deviation:.4f}{sure} ({len(metrics)} seeds)"


def _with_width(pair: Interval | None) -> Interval | None:
    """The interval; None where it has no width, and so is of no use."""
    return pair if pair and pair[0] < pair[1] else None


def _count(row: Row) -> str:
    clusters = shared_clusters(row.runs)
    return str(len(set(clusters.values()))) if clusters else ABSENT


_EXPANDING = {"expand_llm": "language model", "expand_history": "history", "expand_anchor": "anchor",
          "expand_encode": "encoding"}  # fmt: skip
_PROFILE = ("shown_profile_tokens", "profile_prompt_tokens", "profile_answer_tokens")
_ASKED = ("calls", "prompt_tokens", "answer_tokens")
_FAULTS = ("unreadable", "missing", "repeated", "out_of_range")


def costs(rows: Sequence[Row]) -> list[Block]:
    """The tables of what expanding, choosing and answering cost, as far as any row did it."""
    known = [(row, dict(counts(row)), _seconds(row)) for row in rows]
    known = [(row, counts, seconds) for row, counts, seconds in known if counts.get("examples")]
    return [*_showing(known), *_expanding(known), *_choosing(known), *_written_orders(known)]


_Costs = Sequence[tuple[Row, Mapping[str, float], Mapping[str, float]]]


def _seconds(row: Row) -> dict[str, float]:
    total: dict[str, float] = {}
    for run in row.runs:
        total |= {name: total.get(name, 0) + value for name, value in run.seconds.items()}
    return total


def _showing(known: _Costs) -> list[Block]:
    """What prompts held; runs that recorded no tokens have no line."""
    lines, described = [], any(counts.get(_PROFILE[0]) for _, counts, _ in known)
    for row, counts, seconds in known:
        if counts.get("shown_tokens"):
            totals = [counts.get("shown_documents", 0), counts["shown_tokens"], 1000 * seconds.get("rank", 0)]
            totals += [counts.get(name, 0) for name in _PROFILE] if described else []
            lines.append([row.label, *(_short(total / counts["examples"]) for total in totals)])
    header = ["run", "documents", "prompt tokens", "milliseconds to find them"]
    header += ["of the prompt: tokens about the user", "tokens read for them", "written"] if described else []
    caption = "What stood in the prompt of a question, on average, and how long it took to find the documents"
    return [Table(caption, header, lines)] if lines else []


def _expanding(known: _Costs) -> list[Block]:
    if not any(counts.get("expand_answers") for _, counts, _ in known):
        return []
    lines = []
    for row, counts, seconds in known:
        answers, questions = counts.get("expand_answers", 0), counts["examples"]
        failed = f"{counts.get('expand_parse_failures', 0) / answers:.1%}" if answers else ABSENT
        failed += f" ({kinds})" if (kinds := failures(row)) else ""
        totals = [counts.get(f"expand_{name}", 0) for name in ("answers", "prompt_tokens", "answer_tokens")]
        timed = [seconds.get(name, 0) for name in ("rank", *_EXPANDING)]
        lines.append([row.label, failed, *(_short(value / questions) for value in (*totals, *timed))])
    header = ["run", "unreadable answers", "answers", "prompt tokens", "answer tokens", "seconds",
              *_EXPANDING.values()]  # fmt: skip
    caption = (
        "What expanding and searching cost, a question: answers of the language model and their tokens, "
        "seconds of all and of the parts. Answers from the cache cost no time"
    )
    return [Table(caption, header, lines)]


def _choosing(known: _Costs) -> list[Block]:
    if not any(counts.get("select_calls") for _, counts, _ in known):
        return []
    timed = [part for part in ("rank", "generate") if any(seconds.get(part) for _, _, seconds in known)]
    lines = []
    for row, counts, seconds in known:
        cells = [row.label]
        for part in ("select", "generate"):
            totals = [counts.get(f"{part}_{name}", 0) for name in _ASKED]
            cells += [
                _short(value / counts["examples"]) for value in (*totals, seconds.get(f"{part}_llm", 0))
            ]
        spent = [seconds.get(part, 0) for part in timed]  # who does less than others has no speed
        speed = _short(counts["examples"] / sum(spent)) if spent and all(spent) else ABSENT
        lines.append([*cells, speed])
    names = ("calls", "prompt tokens", "tokens scored or written", "seconds")
    header = ["run", *(f"{part}: {name}" for part in ("choosing", "answering") for name in names),
              "questions a second"]  # fmt: skip
    caption = (
        "What the language model did for choosing documents and for answering, a question, and the questions "
        "that a second takes from expanding to answering. Answers from the cache cost no time"
    )
    return [Table(caption, header, lines)]


def _written_orders(known: _Costs) -> list[Block]:
    """What was wrong with the orders that rerankers wrote; no document is lost by it."""
    lines = []
    for row, counts, _ in known:
        if total := counts.get("select_orders", 0):
            shares = [counts.get(f"select_orders_{fault}", 0) / total for fault in _FAULTS]
            lines.append([row.label, f"{total:.0f}", *(f"{share:.1%}" for share in shares)])
    header = ["run", "orders", "name no document", "leave some out", "repeat some", "name others"]
    caption = "Orders that a language model wrote; documents that an order leaves out follow in the old order"
    return [Table(caption, header, lines)] if lines else []


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_MOST = 20  # lines of the table


def by_block(rows: Sequence[Row], name: str, plot: bool) -> list[Block]:
    """A metric of streams over their blocks, as a table and a plot; nothing where no run is a stream."""
    ordered = [row for row in rows if not _is_folded(row)]
    series = {row.label: found for row in ordered if (found := _course(row, name))}
    if not series:
        return []
    spans = sorted({span for found in series.values() for span in found})
    shown = [spans[i] for i in np.unique(np.linspace(0, len(spans) - 1, _MOST).round().astype(int))]
    lines = [
        [f"{start + 1} to {end}", *(_block_text(blocks.get((start, end))) for blocks in series.values())]
        for start, end in shown
    ]
    left_out = "" if len(shown) == len(spans) else f"; {len(shown)} of {len(spans)} blocks"
    shifts = sorted({run.shift for row in rows for run in row.runs if run.shift is not None})
    shifted = f"; the stream shifts after {' or '.join(map(str, shifts))} questions" if shifts else ""
    caption = f"{name} of each block of the stream, and of all questions up to its end{left_out}{shifted}"
    table = Table(caption, ["questions", *series], lines)
    if not (plot and plots.available()):
        return [table]
    points = {label: [(end, *pair) for (_, end), pair in found.items()] for label, found in series.items()}
    what = f"{name} over the stream: dots are blocks, lines are all questions so far"
    return [table, Figure(plots.svg(plots.course(points, name)), what)]


def _is_folded(row: Row) -> bool:
    return row.first.config.get("stream.protocol") in ("cross_users", "cross_units")


def learned(rows: Sequence[Row]) -> list[Block]:
    """What the methods of each row report of the stream, averaged over seeds; nothing where none does."""
    rows = [row for row in rows if any(run.learned for run in row.runs)]
    names = dict.fromkeys(name for row in rows for run in row.runs for name in run.learned)
    lines = [[name, *(_learned_mean(row, name) for row in rows)] for name in names]
    caption = "What methods that learned from the stream report of it"
    return [Table(caption, ["report", *(row.label for row in rows)], lines)] if lines else []


def _learned_mean(row: Row, name: str) -> str:
    if any(name not in run.learned for run in row.runs):
        return ABSENT
    mean = statistics.fmean(run.learned[name] for run in row.runs)
    counted = all(run.learned[name].is_integer() for run in row.runs) and mean > 1
    return f"{mean:.0f}" if counted else f"{mean:.4f}"


def _course(row: Row, name: str) -> dict[tuple[int, int], tuple[float, float]]:
    """The metric of each block that all seeds have, and of all questions so far, averaged over seeds."""
    found = {}
    for span in row.first.blocks:
        pairs = [run.blocks.get(span, ({}, {})) for run in row.runs]
        if all(name in block for block, _ in pairs):
            block, so_far = zip(*((block[name], running[name]) for block, running in pairs), strict=True)
            found[span] = (statistics.fmean(block), statistics.fmean(so_far))
    return found


def _block_text(pair: tuple[float, float] | None) -> str:
    return ABSENT if pair is None else f"{pair[0]:.4f} ({pair[1]:.4f})"


_HASH_DIGITS = 12  # of the prompt's hash


def judged_table(rows: Sequence[Row]) -> list[Block]:
    """The table of what judges found, with each judge's model and the first digits of its prompt's hash;
    nothing where no run was judged."""
    rows = [row for row in rows if row.first.judge]
    if not rows:
        return []
    lines = [[row.label, *_who(row.first.judge), str(row.first.judge["n"]), *_grades(row)] for row in rows]
    caption = (
        "Graded by a language model: the share of answers that it calls right with a probability above .5, "
        "and the mean probability. Such grades move with the judge's wording and with its model"
    )
    header = ["run", "judge", "prompt", "n", *JUDGE_METRICS]
    table = Table(caption, header, lines)
    if len({_who(run.judge) for row in rows for run in row.runs}) < 2:
        return [table]
    told = "The runs were judged by different models or prompts: their grades are not comparable."
    return [Paragraph(told, warning=True), table]


def _who(judge: Mapping[str, Any]) -> tuple[str, str]:
    return str(judge.get("model")), str(judge.get("prompt_hash"))[:_HASH_DIGITS]


def _grades(row: Row) -> list[str]:
    """Each metric, averaged over seeds, with its interval where there is one seed."""
    metrics = [run.judge.get("metrics", {}) for run in row.runs]
    intervals = row.first.judge["intervals"] if len(row.runs) == 1 else {}
    return [_text(metrics, name, _with_width(intervals.get(name))) for name in JUDGE_METRICS]


def shares_table(rows: Sequence[Row]) -> list[Table]:
    """A line of shares for each row of a report, seeds averaged; nothing where no run tells them."""
    names = list(dict.fromkeys(name for row in rows for run in row.runs for name in run.answers))
    if not names:
        return []
    names.sort(key=OTHER.__eq__)
    lines = []
    for row in rows:
        known = [run.answers for run in row.runs if run.answers]
        means = [sum(answers.get(name, 0.0) for answers in known) / max(len(known), 1) for name in names]
        cells = [f"{mean:.1%}{' (no signal)' * (mean > ONE_ANSWER)}" if known else ABSENT for mean in means]
        lines.append([row.label, *cells])
    return [Table(f"Share of each answer; above {ONE_ANSWER:.0%} it is no signal", ["run", *names], lines)]


def copies_table(rows: Sequence[Row]) -> list[Table]:
    """What each row's answers copy, beside what the targets share with the same texts; seeds averaged."""
    if not any(run.copied for row in rows for run in row.runs):
        return []
    lines = []
    for row in rows:
        known = [run.copied for run in row.runs if run.copied]
        shares = [[copied[name] for copied in known if name in copied] for name in COPIED]
        lines.append([row.label, *(f"{sum(s) / len(s):.1%}" if s else ABSENT for s in shares)])
    title = (
        f"How much is copied: share of the {COPIED_WORDS}-word sequences of the answer, and of the target, "
        "that stand in the question or in the documents shown"
    )
    return [Table(title, ["run", *COPIED.values()], lines)]


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
        cells = [_best_share(own[0], drawn, clusters, name) for name in names]
        lines.append([own[0].system, str(most), f"{1 / most:.1%}", str(len(clusters)), *cells])
    if not lines:
        return []
    caption = (
        "In how many questions a method's own order of the documents is the best, among orders of the same "
        f"documents drawn by lot (ties are split), with 95 % intervals over {what}"
    )
    header = ["run", "orders", "chance", "n", *names]
    return [Table(caption, header, lines)]


def _best_share(own: Run, drawn: Sequence[Run], clusters: dict[str, str], name: str) -> str:
    records = [run.records or {} for run in (own, *drawn)]
    shares = best_shares(
        np.array([[one[id].metrics.get(name, np.nan) for one in records] for id in clusters]),
        name in LOWER_IS_BETTER,
    )
    if np.isnan(shares).all():
        return "–"
    share = estimates([Column(plain_mean, [shares[:, None]])], list(clusters.values()))[0]
    sure = f" [{share.low:.1%}, {share.high:.1%}]" if share.low < share.high else ""
    return f"{share.value:.1%}{sure}"


def best_shares(values: np.ndarray, lower: bool) -> np.ndarray:
    """`[n, orders] -> [n]`: 1 where the first is the best, a part of it where others are as good, else 0."""
    signed = -values if lower else values
    best = signed == signed.max(axis=1, keepdims=True)
    shares = best[:, 0] / np.maximum(best.sum(axis=1), 1)
    return np.where(np.isnan(values).any(axis=1), np.nan, shares)
