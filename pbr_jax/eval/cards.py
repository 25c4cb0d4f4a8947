"""Cards: single questions of a finished run, with what was shown, answered and scored; and which to look at.

A run's folder is all that is read. What a folder does not hold (texts, with keep_texts off) stays empty.
"""

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rapidfuzz import fuzz, process

from pbr_jax.base.types import UserError
from pbr_jax.eval import json_fields
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.run_files import lines, parse_object, verified
from pbr_jax.eval.runs import Run

_ID = re.compile(r'\{"id": "(?:[^"\\]|\\.)*"')  # the beginning of a line that we wrote


@dataclass(frozen=True)
class Shown:
    """A ranked document. `text` and `time` (seconds since 1970 UTC) are of texts.jsonl.

    `scores`: of the parts that the score is made of. `span`: of a passage, its characters in the document.
    `in_prompt`: whether it stood in the prompt; the others were ranked only. `relevant`: the data say that it
    holds an answer.
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
    texts = {id: value for id, value, _ in _lines(folder / "texts.jsonl", wanted)}
    found = set()
    for id, value, where in _lines(folder / "predictions.jsonl", wanted):
        if texts and id not in texts:
            raise UserError(f"{where}: question {id!r} is not in texts.jsonl; run it anew with --overwrite")
        found.add(id)
        yield _card(id, value, texts.get(id, {}), where)
    if wanted is not None and wanted - found:
        raise unknown(folder, "question", min(wanted - found), (str(line["id"]) for line in lines(folder)))


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


def side_by_side(
    first: str | Path, second: str | Path, ids: Collection[str] | None = None
) -> Iterator[tuple[Card, Card]]:
    """The cards of two runs of the same questions, joined by id; UserError where the second lacks one."""
    other = {card.id: card for card in cards(second, ids)}
    for card in cards(first, ids):
        if card.id not in other:
            raise UserError(
                f"{second} has no question {card.id!r} of {first}; give runs of the same questions"
            )
        yield card, other[card.id]


def gains(first: Run, second: Run, measure: str) -> dict[str, float]:
    """What the first run gains over the second on each question that both scored; more is better."""
    sign = -1.0 if measure in LOWER_IS_BETTER else 1.0
    others = second.records or {}
    return {
        id: sign * (record.metrics[measure] - others[id].metrics[measure])
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


def _lines(path: Path, wanted: Collection[str] | None) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Id, value and place of each line; lines of other questions are not parsed. Nothing without the file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            where, begins = f"{path}, line {number}", _ID.match(line)
            if begins and wanted is not None and parse_object(begins[0] + "}", where)["id"] not in wanted:
                continue
            if not line.strip():
                continue
            value = parse_object(line, where)
            id = str(json_fields.required(value, "id", where))
            if wanted is None or id in wanted:
                yield id, value, where


def _card(id: str, value: Mapping[str, Any], seen: Mapping[str, Any], where: str) -> Card:
    ranked, texts = json_fields.items(value, "documents", where), json_fields.items(seen, "documents", where)
    shown, user = value.get("prompt_documents") or 0, str(json_fields.required(value, "user_id", where))
    relevant = tuple(tuple(map(str, group)) for group in json_fields.items(value, "relevant", where))
    documents = (
        _shown(document, texts[i] if i < len(texts) else {}, where, i < shown, _own(relevant, user))
        for i, document in enumerate(ranked)
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
        metrics=json_fields.numbers(value, "metrics", where),
        documents=tuple(documents),
        history=value.get("history"),
        time=seen.get("time"),
        prompt_tokens=value.get("prompt_tokens", 0),
        relevant=relevant,
        messages=tuple(json_fields.items(seen, "prompt", where)),
    )


def _own(relevant: Iterable[Iterable[str]], user: str) -> set[tuple[str, str]]:
    """Ids and owners of relevant documents: the user's own or nobody's, whose ids another's may have too."""
    return {(id, owner) for group in relevant for id in group for owner in ("", user)}


def _shown(
    value: Mapping[str, Any], text: Mapping[str, Any], where: str, in_prompt: bool, own: set[tuple[str, str]]
) -> Shown:
    if text and (text.get("id"), text.get("user_id")) != (value.get("id"), value.get("user_id")):
        raise UserError(f"{where}: texts.jsonl has other documents; run it anew with --overwrite")
    return Shown(
        id=str(json_fields.required(value, "id", where)),
        user_id=str(value.get("user_id", "")),
        score=json_fields.number(value.get("score", 0.0), f"{where}: score"),
        scores=json_fields.numbers(value, "scores", where),
        span=_span(value["span"], f"{where}: span") if "span" in value else None,
        text=str(text.get("text", "")),
        time=text.get("time"),
        in_prompt=in_prompt,
        relevant=(value.get("id"), value.get("user_id")) in own,
    )


def _span(value: Any, where: str) -> tuple[int, int]:
    begin, end = json_fields.pair(value, where)
    return int(begin), int(end)
