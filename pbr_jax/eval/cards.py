"""Cards: single questions of a finished run, with what was shown, answered and scored; and which to look at.

A run's folder is all that is read. What a folder does not hold (texts, with keep_texts off) stays empty.
"""

import html
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from rapidfuzz import fuzz, process

from pbr_jax.base.tables import number
from pbr_jax.base.terminal import Paragraph, plain, visible
from pbr_jax.base.types import UserError
from pbr_jax.eval.metrics import direction
from pbr_jax.eval.run_files import lines, parse_object, verified
from pbr_jax.eval.runs import Run

_ID = re.compile(r'\{"id": "(?:[^"\\]|\\.)*"')  # the beginning of a line that we wrote


@dataclass(frozen=True)
class Shown:
    """A ranked document. `text` and `time` (seconds since 1970 UTC) are of texts.jsonl.

    `scores`: of the parts that the score is made of. `span`: of a passage, its characters in the document.
    `in_prompt`: whether it stood in the prompt; the others were ranked only. `relevant`: the data say that it
    holds an answer, or that one of its `sources` does, from which a text of its own was made.
    """

    id: str
    user_id: str
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    span: tuple[int, int] | None = None
    text: str = ""
    time: float | None = None
    in_prompt: bool = True
    relevant: bool = False
    sources: tuple[str, ...] = ()

    @property
    def documents(self) -> tuple[str, ...]:
        """The ids of the documents for which it counts."""
        return self.sources or (self.id,)


@dataclass(frozen=True)
class Card:
    """A question of a run. `history`: how many documents the user had; None where the run does not say it.

    `relevant`: for each fact that is needed the ids of the documents that alternatively hold it; () where the
    data name none, and in runs of older versions. `messages`: the prompt, as the model was sent it.
    """

    id: str
    user_id: str
    unit: str
    category: str
    query: str
    input: str
    profile: str
    target: str | None
    prediction: str | None
    metrics: Mapping[str, float]
    documents: tuple[Shown, ...]
    history: int | None = None
    time: float | None = None
    prompt_tokens: int = 0
    relevant: tuple[tuple[str, ...], ...] = ()
    messages: tuple[Mapping[str, str], ...] = ()


class Pick(NamedTuple):
    """A question to look at, and the gain of one run over another there: more is better, None: no such."""

    id: str
    gain: float | None


def cards(folder: str | Path, ids: Collection[str] | None = None, *, check: bool = True) -> Iterator[Card]:
    """The cards of a finished run in the order of its questions, `ids` alone where they are given.

    `check`: whether the files' hashes are checked, which a caller that has just read the run need not do.

    Raises:
      UserError: no finished run, a folder without predictions.jsonl, lines that do not belong together, or
        an id that the run does not have.
    """
    folder = Path(folder)
    if check:
        verified(folder)
    if not (folder / "predictions.jsonl").exists():
        raise UserError(
            f"{folder} has no predictions.jsonl, so no questions can be shown; give the whole folder"
        )
    wanted = None if ids is None else set(ids)
    texts = dict(_lines(folder / "texts.jsonl", wanted))
    seen = set()
    for id, value in _lines(folder / "predictions.jsonl", wanted):
        seen.add(id)
        yield _card(id, value, texts.get(id, {}))
    if wanted is not None and wanted - seen:
        raise unknown(folder, "question", min(wanted - seen), (str(line["id"]) for line in lines(folder)))


def of_user(folder: str | Path, user: str) -> list[str]:
    """The ids of a user's questions in a finished run. Raises UserError for a user who asked none."""
    verified(Path(folder))
    asked = [(str(line["id"]), str(line["user_id"])) for line in lines(Path(folder))]
    if found := [id for id, who in asked if who == user]:
        return found
    raise unknown(folder, "question of user", user, (who for _, who in asked))


def unknown(where: object, what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not there, with the nearest that are."""
    names = list(dict.fromkeys(known))
    near = [one for one, *_ in process.extract(name, names, scorer=fuzz.ratio, limit=3, score_cutoff=55)]
    hint = f"did you mean {_either(near)}?" if near else f"there are, for example, {_either(names[:3])}"
    return UserError(f"{where} has no {what} {name!r}; {hint}")


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names)) or "none"


def gains(first: Run, second: Run, measure: str) -> dict[str, float]:
    """What the first run gains over the second on each question that both scored; more is better."""
    others = second.records or {}
    return {
        id: direction(measure) * (record.metrics[measure] - others[id].metrics[measure])
        for id, record in (first.records or {}).items()
        if id in others and measure in record.metrics and measure in others[id].metrics
    }


def picked(values: Mapping[str, float], ids: Sequence[str], count: int, seed: int = 0) -> list[Pick]:
    """At most `count` questions to look at: a quarter the largest gains, a quarter the largest losses, and
    the rest drawn by lot from `ids`, with the seed. By the size of the gain, the largest first.

    Args:
      values: gains by question, as `gains` gives them; empty for a single run, whose questions are drawn.
    """
    ranked = sorted(values, key=lambda id: (-values[id], id))
    ends = [id for id in ranked[: count // 4] if values[id] > 0]
    ends += [id for id in ranked[::-1][: count // 4] if values[id] < 0]
    rest = sorted(set(ids) - set(ends))
    drawn = random.Random(seed).sample(rest, min(count - len(ends), len(rest)))
    place = {id: i for i, id in enumerate(ids)}
    chosen = sorted([*ends, *drawn], key=lambda id: (-abs(values.get(id, 0.0)), place.get(id, 0)))
    return [Pick(id, values.get(id)) for id in chosen]


def _lines(path: Path, wanted: Collection[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Id and fields of each line; lines of other questions are not parsed. Nothing without the file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            where, begins = f"{path}, line {number}", _ID.match(line)
            if begins and wanted is not None and parse_object(begins[0] + "}", where)["id"] not in wanted:
                continue
            value = parse_object(line, where)
            if wanted is None or str(value["id"]) in wanted:
                yield str(value["id"]), value


def _card(id: str, value: Mapping[str, Any], seen: Mapping[str, Any]) -> Card:
    texts, user = seen.get("documents") or [], str(value["user_id"])
    relevant = tuple(tuple(map(str, group)) for group in value.get("relevant") or ())
    # Relevant are the user's own or nobody's: another's documents may have the same ids.
    own = {(document, owner) for group in relevant for document in group for owner in ("", user)}
    documents = (
        Shown(
            id=str(document["id"]),
            user_id=str(document.get("user_id", "")),
            score=float(document.get("score", 0.0)),
            scores=document.get("scores") or {},
            span=tuple(document["span"]) if "span" in document else None,
            text=str(text.get("text", "")),
            time=text.get("time"),
            in_prompt=place < (value.get("prompt_documents") or 0),
            relevant=any((id, document.get("user_id")) in own for id in _documents(document)),
            sources=tuple(map(str, document.get("sources", ()))),
        )
        for place, (document, text) in enumerate(
            zip_longest(value.get("documents") or (), texts, fillvalue={})
        )
    )
    return Card(
        id=id,
        user_id=user,
        unit=str(value.get("unit", "")),
        category=str(value.get("category", "")),
        query=str(seen.get("query", "")),
        input=str(seen.get("input", "")),
        profile=str(seen.get("profile") or ""),
        target=value.get("target"),
        prediction=value.get("prediction"),
        metrics=value.get("metrics") or {},
        documents=tuple(documents),
        history=value.get("history"),
        time=seen.get("time"),
        prompt_tokens=value.get("prompt_tokens", 0),
        relevant=relevant,
        messages=tuple(seen.get("prompt") or ()),
    )


def _documents(told: Mapping[str, Any]) -> list[str]:
    return told.get("sources") or [told["id"]]


DOCUMENTS = 5
"""The number of documents shown per run. Those in the prompt are first."""

_LONG, _SHORT = 2000, 400  # characters of a question or an answer, and of a document


@dataclass(frozen=True, repr=False)
class QuestionCard:
    """The cards of one question, by the name of the run."""

    runs: Mapping[str, Card]

    def paragraphs(self, *, documents: int = DOCUMENTS, prompt: bool = False) -> Iterator[Paragraph]:
        """Question and target, followed by metrics, answer and documents of each run.

        `documents`: the number of documents per run. `prompt`: whether to include the messages to the model.
        """
        card = next(iter(self.runs.values()))
        history = "" if card.history is None else f"{card.history} documents in the history"
        user, category = (
            card.user_id and f"user {card.user_id}",
            card.category and f"category {card.category}",
        )
        yield Paragraph(_joined(f"question {card.id}", user, category, history, _date(card.time)), 0, "bold")
        yield Paragraph(_cut(card.input or card.query) or "(the run keeps no texts)", 2)
        if card.target is not None:
            yield Paragraph(f"target: {_cut(card.target)}", 2, "green")
        for name, own in self.runs.items():
            yield Paragraph("")
            yield Paragraph(name, 0, "bold cyan")
            yield from _run(own, documents)
            if prompt:
                yield from _prompt(own)

    def __repr__(self) -> str:
        return plain(self.paragraphs())

    def _repr_html_(self) -> str:
        return "".join(
            f'<div style="margin-left: {one.indent}ch; white-space: pre-wrap; min-height: 1lh; '
            f'{"font-weight: bold" * ("bold" in one.style)}">{html.escape(visible(one.text))}</div>'
            for one in self.paragraphs()
        )


def _run(card: Card, most: int) -> Iterator[Paragraph]:
    metrics = ", ".join(f"{name} {number(value)}" for name, value in card.metrics.items())
    yield Paragraph(metrics or "(not scored)", 2)
    if card.profile:
        yield Paragraph(f"about the user: {_cut(card.profile)}", 2)
    yield Paragraph(f"answer: {_cut(card.prediction or '') or '(none)'}", 2)
    shown = sum(one.in_prompt for one in card.documents)
    tokens = f", of {card.prompt_tokens} tokens" if card.prompt_tokens else ""
    if card.documents:
        yield Paragraph(
            f"{shown} of {len(card.documents)} documents that were ranked are in the prompt{tokens}", 2
        )
    for rank, one in enumerate(card.documents[:most], 1):
        yield from _document(rank, one, card, none_shown=not shown)
    if len(card.documents) > most:
        yield Paragraph(f"and {len(card.documents) - most} more", 4, "dim")
    ranked = {id for one in card.documents if one.relevant for id in one.documents}
    if missed := [" or ".join(group[:3]) for group in card.relevant if not ranked & set(group)]:
        yield Paragraph(f"relevant, and not ranked: {'; '.join(missed[:most])}", 4, "red")


def _document(rank: int, one: Shown, card: Card, *, none_shown: bool) -> Iterator[Paragraph]:
    parts = ", ".join(f"{name} {number(score)}" for name, score in one.scores.items())
    owner = "" if one.user_id == card.user_id else f"of user {one.user_id}" if one.user_id else "shared"
    score = f"score {number(one.score)}" + f" ({parts})" * bool(parts)
    told = _joined(
        f"{rank}. {one.id}", score, owner, _date(one.time),
        "characters {} to {}".format(*one.span) if one.span else "",
        "from " + ", ".join(one.sources) if one.sources else "", "relevant" if one.relevant else "",
        "" if one.in_prompt or none_shown else "not in the prompt",
    )  # fmt: skip
    yield Paragraph(told, 4, "green" if one.relevant else "")
    if one.text:
        yield Paragraph(_cut(" ".join(one.text.split()), _SHORT), 7, "dim")


def _prompt(card: Card) -> Iterator[Paragraph]:
    yield Paragraph("prompt:" if card.messages else "prompt: (none, or the run keeps no texts)", 2)
    for message in card.messages:
        yield Paragraph(f"[{message.get('role', '')}]", 4, "bold")
        yield Paragraph(message.get("content", ""), 4)


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


def _cut(text: str, most: int = _LONG) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _date(seconds: float | None) -> str:
    """A moment since 1970 UTC as a date, with the time of the day where it is not midnight."""
    try:
        moment = datetime(1970, 1, 1) + timedelta(seconds=seconds or 0)
    except OverflowError:  # no year of four digits
        return ""
    return "" if seconds is None else moment.strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")
