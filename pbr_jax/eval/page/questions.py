"""The single questions and users that a page holds as JSON, within bounds: sampled, and said to be."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pbr_jax.base.terminal import visible
from pbr_jax.eval.cards import Card, Pick, Shown, cards, gains, picked
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.page.comparison import Comparison
from pbr_jax.eval.runs import Record

BYTES = 1_600_000
"""Of the questions of all sections: what a page of 3 MB leaves, with room for its tables."""

_LEAST = 8  # questions picked for each row
_DOCUMENTS = 5  # of a question and run
_LONG, _SHORT = 1200, 400  # characters of a question or an answer, and of a document
_USERS = 300


def data(found: Comparison, count: int, size: int) -> dict[str, Any]:
    """Questions and users of a section, for the page's script; empty where runs hold no predictions.

    Args:
      count: questions that are aimed at; of each system's gains over the reference the largest come first.
      size: bytes of JSON that the questions may take; what is over it is left out.
    """
    rows, reference = found.section.rows, found.section.reference
    records = [row.first.records or {} for row in rows]
    base = reference.first.records or records[0]
    if not base or count < 1:
        return {}
    picks = _picks(found, list(base), count)
    by_run = [
        _read(row.first.path, [pick for pick in picks if pick in own]) for row, own in zip(rows, records)
    ]
    questions, left = [], size
    for id in picks:
        question = _question(found, base[id], [own.get(id) for own in by_run])
        left -= len(json.dumps(question))
        if left < 0:
            break
        questions.append(question)
    mains = [gain.row.label for gain in found.main]
    labels = [row.label for row in rows]
    return {
        "rows": list(map(visible, labels)),
        "reference": labels.index(reference.label),
        "shown": labels.index(mains[0]) if mains else labels.index(reference.label),
        "measure": found.measure,
        "lower": found.measure in LOWER_IS_BETTER,
        "names": _names(found),
        "total": len(base),
        "questions": questions,
        "users": _users(found, records, base),
        "userTotal": len({record.user_id for record in base.values()}),
    }


def _names(found: Comparison) -> list[str]:
    return list(dict.fromkeys([found.measure, *found.section.names]))


def _picks(found: Comparison, ids: Sequence[str], count: int) -> list[str]:
    """Ids in turn for each row: those of the largest gains and losses first, then drawn ones."""
    reference, others = found.section.reference.first, found.main
    if not others:
        return [pick.id for pick in picked({}, ids, count)]
    each = max(_LEAST, count // len(others))
    lists: list[list[Pick]] = [
        picked(gains(gain.row.first, reference, found.measure), ids, each) for gain in others
    ]
    turns = (some[place].id for place in range(each) for some in lists if place < len(some))
    return list(dict.fromkeys(turns))[: max(count, _LEAST)]


def _read(folder: Any, ids: Sequence[str]) -> dict[str, Card]:
    return {card.id: card for card in cards(folder, ids, check=False)} if ids else {}


def _question(found: Comparison, record: Record, own: Sequence[Card | None]) -> dict[str, Any]:
    first = next(card for card in own if card is not None)
    documents: dict[tuple[Any, ...], list[Any]] = {}
    runs = [None if card is None else _run(found, card, documents) for card in own]
    return {
        "id": visible(first.id),
        "user": visible(first.user_id),
        "category": visible(first.category),
        "history": first.history,
        "time": first.time,
        "input": _cut(first.input or first.query, _LONG),
        "target": None if first.target is None else _cut(first.target, _LONG),
        "documents": list(documents.values()),
        "runs": runs,
    }


def _run(found: Comparison, card: Card, documents: dict[tuple[Any, ...], list[Any]]) -> list[Any]:
    """Answer, metrics, and documents as [place among the question's, score, its parts, in the prompt]."""
    shown = [one for one in card.documents if one.in_prompt] or list(card.documents)
    ranked = [[_place(one, card, documents), _short(one.score),
               {name: _short(score) for name, score in one.scores.items()}, int(one.in_prompt)]
              for one in shown[:_DOCUMENTS]]  # fmt: skip
    metrics = [_short(card.metrics[name]) if name in card.metrics else None for name in _names(found)]
    return [_cut(card.prediction or "", _LONG), metrics, ranked, len(shown)]


def _place(one: Shown, card: Card, documents: dict[tuple[Any, ...], list[Any]]) -> int:
    whose = "" if one.user_id == card.user_id else one.user_id or "shared"
    documents.setdefault(
        (one.user_id, one.id, one.span), [visible(one.id), visible(whose), one.time, _cut(one.text, _SHORT)]
    )
    return list(documents).index((one.user_id, one.id, one.span))


def _users(
    found: Comparison, records: Sequence[Mapping[str, Record]], base: Mapping[str, Record]
) -> list[list[Any]]:
    """Users with the most questions: name, questions, documents of the history, mean of each row."""
    by_user: dict[str, list[str]] = {}
    for id, record in base.items():
        by_user.setdefault(record.user_id, []).append(id)
    lines = []
    for user, ids in sorted(by_user.items(), key=lambda item: -len(item[1]))[:_USERS]:
        lengths = [length for id in ids if (length := base[id].history) is not None]
        means = [_mean(own, ids, found.measure) for own in records]
        lines.append([visible(user), len(ids), max(lengths, default=None), means])
    return lines


def _mean(own: Mapping[str, Record], ids: Sequence[str], measure: str) -> float | None:
    values = [own[id].metrics[measure] for id in ids if id in own and measure in own[id].metrics]
    return _short(statistics.fmean(values)) if values and len(values) == len(ids) else None


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _cut(text: str, most: int) -> str:
    text = visible(text)
    return text if len(text) <= most else text[: most - 1] + "…"
