"""The text of a question of one or several runs, for terminals and notebooks."""

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pbr_jax.base.tables import number
from pbr_jax.base.terminal import Paragraph, plain, visible
from pbr_jax.eval.cards import Card, Shown

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
    ranked = {one.id for one in card.documents if one.relevant}
    if missed := [" or ".join(group[:3]) for group in card.relevant if not ranked & set(group)]:
        yield Paragraph(f"relevant, and not ranked: {'; '.join(missed[:most])}", 4, "red")


def _document(rank: int, one: Shown, card: Card, *, none_shown: bool) -> Iterator[Paragraph]:
    parts = ", ".join(f"{name} {number(score)}" for name, score in one.scores.items())
    owner = "" if one.user_id == card.user_id else f"of user {one.user_id}" if one.user_id else "shared"
    score = f"score {number(one.score)}" + f" ({parts})" * bool(parts)
    told = _joined(
        f"{rank}. {one.id}", score, owner, _date(one.time),
        "characters {} to {}".format(*one.span) if one.span else "", "relevant" if one.relevant else "",
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
