"""What runs cost a question: calls of the language model, tokens, seconds."""

from collections.abc import Mapping, Sequence

from pbr_jax.eval import notes as remarks
from pbr_jax.eval.comparable import ABSENT
from pbr_jax.eval.render import Block, Cell, Table
from pbr_jax.eval.runs import Row

_PARTS = {"expand_llm": "language model", "expand_history": "history", "expand_anchor": "anchor",
          "expand_encode": "encoding"}  # fmt: skip
_PROFILE = ("shown_profile_tokens", "profile_prompt_tokens", "profile_answer_tokens")
_ASKED = ("calls", "prompt_tokens", "answer_tokens")
_FAULTS = ("unreadable", "missing", "repeated", "out_of_range")


def costs(rows: Sequence[Row]) -> list[Block]:
    """The tables of what expanding, choosing and answering cost, as far as any row did it."""
    known = [(row, dict(remarks.counts(row)), _seconds(row)) for row in rows]
    known = [(row, counts, seconds) for row, counts, seconds in known if counts.get("examples")]
    return [*_showing(known), *_expanding(known), *_choosing(known), *_orders(known)]


def throughput(rows: Sequence[Row]) -> dict[str, float]:
    """Questions a second by the rows' labels, from expanding to answering; a row that was not timed has none.

    Where no row answers it is that of finding documents. Beside rows that answer, a row that does not has
    none: it did less. What was made before the questions came, such as vectors of documents, is not in it.
    """
    timed = {row.label: [run for run in row.runs if run.seconds.get("rank", 0) > 0] for row in rows}
    parts = (
        ("rank", "generate")
        if any("generate" in run.seconds for row in rows for run in row.runs)
        else ("rank",)
    )
    rates = {}
    for label, runs in timed.items():
        if runs and all(part in run.seconds for run in runs for part in parts):
            examples = sum(
                run.counts.get("examples", run.n) for run in runs
            )  # also those that are not scored
            rates[label] = examples / sum(run.seconds[part] for run in runs for part in parts)
    return rates


_Known = Sequence[tuple[Row, Mapping[str, float], Mapping[str, float]]]


def _seconds(row: Row) -> dict[str, float]:
    total: dict[str, float] = {}
    for run in row.runs:
        total |= {name: total.get(name, 0) + value for name, value in run.seconds.items()}
    return total


def _showing(known: _Known) -> list[Block]:
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
    return [_table(caption, header, lines)] if lines else []


def _expanding(known: _Known) -> list[Block]:
    if not any(counts.get("expand_answers") for _, counts, _ in known):
        return []
    lines = []
    for row, counts, seconds in known:
        answers, questions = counts.get("expand_answers", 0), counts["examples"]
        failed = f"{counts.get('expand_parse_failures', 0) / answers:.1%}" if answers else ABSENT
        failed += f" ({kinds})" if (kinds := remarks.failures(row)) else ""
        totals = [counts.get(f"expand_{name}", 0) for name in ("answers", "prompt_tokens", "answer_tokens")]
        timed = [seconds.get(name, 0) for name in ("rank", *_PARTS)]
        lines.append([row.label, failed, *(_short(value / questions) for value in (*totals, *timed))])
    header = ["run", "unreadable answers", "answers", "prompt tokens", "answer tokens", "seconds",
              *_PARTS.values()]  # fmt: skip
    caption = (
        "What expanding and searching cost, a question: answers of the language model and their tokens, "
        "seconds of all and of the parts. Answers from the cache cost no time"
    )
    return [_table(caption, header, lines)]


def _choosing(known: _Known) -> list[Block]:
    if not any(counts.get("select_calls") for _, counts, _ in known):
        return []
    lines, speeds = [], throughput([row for row, _, _ in known])
    for row, counts, seconds in known:
        cells = [row.label]
        for part in ("select", "generate"):
            totals = [counts.get(f"{part}_{name}", 0) for name in _ASKED]
            cells += [
                _short(value / counts["examples"]) for value in (*totals, seconds.get(f"{part}_llm", 0))
            ]
        lines.append([*cells, _short(speeds[row.label]) if row.label in speeds else ABSENT])
    names = ("calls", "prompt tokens", "tokens scored or written", "seconds")
    header = ["run", *(f"{part}: {name}" for part in ("choosing", "answering") for name in names),
              "questions a second"]  # fmt: skip
    caption = (
        "What the language model did for choosing documents and for answering, a question, and the questions "
        "that a second takes from expanding to answering. Answers from the cache cost no time"
    )
    return [_table(caption, header, lines)]


def _orders(known: _Known) -> list[Block]:
    """What was wrong with the orders that rerankers wrote; no document is lost by it."""
    lines = []
    for row, counts, _ in known:
        if total := counts.get("select_orders", 0):
            shares = [counts.get(f"select_orders_{fault}", 0) / total for fault in _FAULTS]
            lines.append([row.label, f"{total:.0f}", *(f"{share:.1%}" for share in shares)])
    header = ["run", "orders", "name no document", "leave some out", "repeat some", "name others"]
    caption = "Orders that a language model wrote; documents that an order leaves out follow in the old order"
    return [_table(caption, header, lines)] if lines else []


def _table(caption: str, header: list[str], lines: Sequence[Sequence[str]]) -> Table:
    return Table(caption, header, [[Cell(text) for text in line] for line in lines])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
