"""From files as their authors release them to the folders of the docs' tables."""

import gzip
import json
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError

_HEADLINE = "Generate a headline for the following article: "
_SCORE = (
    "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 "
    "without further explanation. review: "
)
_LAMP_7_DEV = 1500
_MOST, _LEAST = 10, 5  # questions of an author; articles before the first of them
_SINCE = "2018-02-28"
_ARTICLE: Mapping[str, Any] = dict.fromkeys(("authors", "headline", "short_description", "date"), str)
_REVIEW: Mapping[str, Any] = {
    "reviewerID": str,
    "reviewText": str,
    "overall": int | float,
    "unixReviewTime": int | float,
}
_AGAIN = "delete the file and download it again"


def lamp_7(source: Path, out: Path) -> None:
    """LaMP-7's dev users in an order drawn by seed 7: the first 900 for training, the next 200 evaluated."""
    questions = _json(source / "dev_questions.json")
    outputs = _json(source / "dev_outputs.json")
    try:
        golds = {gold["id"]: gold for gold in outputs["golds"]}
        missing = [question["id"] for question in questions if question["id"] not in golds]
    except (TypeError, KeyError) as error:
        raise UserError(f"{source} holds no LaMP questions and outputs; {_AGAIN}") from error
    if missing or len(questions) != _LAMP_7_DEV:
        raise UserError(
            f"{source} has {len(questions)} questions, {len(missing)} of them without a target; want the "
            f"{_LAMP_7_DEV} of LaMP-7's user split, dev, each with one"
        )
    order = list(range(len(questions)))
    random.Random(7).shuffle(order)
    for split, places in (("train", order[:900]), ("dev", order[900:1100])):
        chosen = [questions[place] for place in places]
        _write(out, split, "LaMP_7", chosen, [golds[question["id"]] for question in chosen])


def reviews(source: Path, out: Path) -> None:
    """Reviewers in an order drawn by seed 3: 800 for training, the next 200 evaluated. A user's last review
    by date is the question, those before it are the profile."""
    by_user: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _lines(source / "reviews_Musical_Instruments_5.json.gz", _REVIEW):
        if row["reviewText"].strip():
            by_user[row["reviewerID"]].append(row)
    users = [sorted(rows, key=lambda row: row["unixReviewTime"]) for rows in by_user.values()]
    order = list(range(len(users)))
    random.Random(3).shuffle(order)
    for split, numbers in (("train", order[:800]), ("dev", order[800:1000])):
        made = [_review(number, users[number]) for number in numbers if len(users[number]) > 1]
        _write(out, split, "LaMP_3", [q for q, _ in made], [gold for _, gold in made])


def _review(number: int, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    *before, last = rows
    profile = [
        {
            "id": f"{number}{place}",
            "text": row["reviewText"],
            "score": str(round(row["overall"])),
            "date": str(row["unixReviewTime"]),
        }
        for place, row in enumerate(before)
    ]
    question = {"id": str(number), "input": _SCORE + last["reviewText"], "profile": profile}
    return question, {"id": str(number), "output": str(round(last["overall"]))}


def headlines(source: Path, out: Path) -> None:
    """Authors with at least six articles since 28 February 2018, numbered by name: those whose number leaves
    2 when divided by 4 are evaluated, 0 and 1 are for training. An author's last articles, at most ten, are
    questions, each with all earlier articles as its profile."""
    by_author: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _lines(source / "News_Category_Dataset_v2.json", _ARTICLE):
        if row["date"] >= _SINCE and all(row[name].strip() for name in _ARTICLE if name != "date"):
            by_author[row["authors"]].append(row)
    kept = [by_author[name] for name in sorted(by_author) if len(by_author[name]) > _LEAST]
    for split, rests in (("train", (0, 1)), ("dev", (2,))):
        made = [
            one
            for number, rows in enumerate(kept)
            if number % 4 in rests
            for one in _headlines(number, sorted(rows, key=lambda row: row["date"]))
        ]
        _write(out, split, "LaMP_4", [q for q, _ in made], [gold for _, gold in made])


def _headlines(author: int, rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    articles = [
        {
            "id": f"{author}-{place}",
            "text": row["short_description"],
            "title": row["headline"],
            "date": row["date"],
        }
        for place, row in enumerate(rows)
    ]
    for place in range(max(_LEAST, len(rows) - _MOST), len(rows)):
        asked = articles[place]
        yield (
            {
                "id": asked["id"],
                "user_id": author,
                "input": _HEADLINE + asked["text"],
                "profile": articles[:place],
            },
            {"id": asked["id"], "output": asked["title"]},
        )


def _write(out: Path, split: str, task: str, questions: list[Any], golds: list[Any]) -> None:
    for name, content in (("questions", questions), ("outputs", {"task": task, "golds": golds})):
        text = json.dumps(content, ensure_ascii=False)
        (out / f"{split}_{name}.json").write_text(text, encoding="utf-8")


def _json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); {_AGAIN}") from error


def _lines(path: Path, fields: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = parse_json(line)
                except ValueError as error:
                    what = f"{path} line {number} is not JSON ({error})"
                    raise UserError(f"{what}; {_AGAIN}") from error
                if wrong := [name for name, kind in fields.items() if not _has(row, name, kind)]:
                    raise UserError(
                        f"{path} line {number} has no {wrong[0]}; want the file that the recipe names"
                    )
                yield row
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is no whole gzip file ({error}); {_AGAIN}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error}); {_AGAIN}") from error


def _has(row: Any, name: str, kind: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get(name), kind)
