"""From files as their authors release them to the folders of the docs' tables."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.data import json_stream
from pbr_jax.data.records import Record

_HEADLINE = "Generate a headline for the following article: "
_SCORE = (
    "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 "
    "without further explanation. review: "
)
_LAMP_7_DEV = 1500
_MOST, _LEAST = 10, 5  # questions of an author; articles before the first of them
_SINCE = "2018-02-28"

_Asked = tuple[Mapping[str, Any], Mapping[str, Any]]  # a question, and its output


def lamp_7(source: Path, out: Path) -> None:
    """LaMP-7's dev users in an order drawn by seed 7: the first 900 for training, the next 200 evaluated."""
    golds = json_stream.load(source / "dev_outputs.json").records("golds")
    outputs = {gold.name("id"): gold.values for gold in golds}
    questions = list(json_stream.records(source / "dev_questions.json"))
    asked = [(q.values, outputs[q.name("id")]) for q in questions if q.name("id") in outputs]
    if not len(asked) == len(questions) == _LAMP_7_DEV:
        raise UserError(
            f"{source} has {len(questions)} questions, {len(questions) - len(asked)} of them without a "
            f"target; want the {_LAMP_7_DEV} of LaMP-7's user split, dev, each with one"
        )
    random.Random(7).shuffle(asked)
    _write(out, "LaMP_7", train=asked[:900], dev=asked[900:1100])


def reviews(source: Path, out: Path) -> None:
    """Reviewers in an order drawn by seed 3: 800 for training, the next 200 evaluated. A user's last review
    by date is the question, those before it are the profile."""
    by_user: dict[str, list[Record]] = defaultdict(list)
    for row in json_stream.lines(source / "reviews_Musical_Instruments_5.json.gz"):
        if row.text("reviewText").strip():
            by_user[row.text("reviewerID")].append(row)
    users = [
        (number, sorted(rows, key=lambda row: _number(row, "unixReviewTime")))
        for number, rows in enumerate(by_user.values())
    ]
    random.Random(3).shuffle(users)
    splits = {"train": users[:800], "dev": users[800:1000]}
    asked = {
        split: [_review(number, rows) for number, rows in some if len(rows) > 1]
        for split, some in splits.items()
    }
    _write(out, "LaMP_3", **asked)


def _review(number: int, rows: Sequence[Record]) -> _Asked:
    *before, last = rows
    profile = [
        {
            "id": f"{number}{place}",
            "text": row.text("reviewText"),
            "score": str(round(_number(row, "overall"))),
            "date": row.text("unixReviewTime"),
        }
        for place, row in enumerate(before)
    ]
    question = {"id": str(number), "input": _SCORE + last.text("reviewText"), "profile": profile}
    return question, {"id": str(number), "output": str(round(_number(last, "overall")))}


def _number(row: Record, key: str) -> float:
    value = row.value(key)
    if not isinstance(value, int | float):
        raise row.fault(key, f"{value!r:.40}", "a number", "take the file that the recipe names")
    return value


def headlines(source: Path, out: Path) -> None:
    """Authors with at least six articles since 28 February 2018, numbered by name: those whose number leaves
    2 when divided by 4 are evaluated, 0 and 1 are for training. An author's last articles, at most ten, are
    questions, each with all earlier articles as its profile."""
    by_author: dict[str, list[Record]] = defaultdict(list)
    for row in json_stream.lines(source / "News_Category_Dataset_v2.json"):
        texts = [row.text(name).strip() for name in ("authors", "headline", "short_description")]
        if row.text("date") >= _SINCE and all(texts):
            by_author[row.text("authors")].append(row)
    kept = [by_author[name] for name in sorted(by_author) if len(by_author[name]) > _LEAST]
    asked = {
        split: [
            one
            for number, rows in enumerate(kept)
            if number % 4 in rests
            for one in _headlines(number, sorted(rows, key=lambda row: row.text("date")))
        ]
        for split, rests in (("train", (0, 1)), ("dev", (2,)))
    }
    _write(out, "LaMP_4", **asked)


def _headlines(author: int, rows: Sequence[Record]) -> Iterator[_Asked]:
    names = {"text": "short_description", "title": "headline", "date": "date"}
    articles = [
        {"id": f"{author}-{place}", **{name: row.text(key) for name, key in names.items()}}
        for place, row in enumerate(rows)
    ]
    for place in range(max(_LEAST, len(rows) - _MOST), len(rows)):
        asked = articles[place]
        question = {"id": asked["id"], "user_id": author, "input": _HEADLINE + asked["text"]}
        yield {**question, "profile": articles[:place]}, {"id": asked["id"], "output": asked["title"]}


def _write(out: Path, task: str, **splits: Sequence[_Asked]) -> None:
    for split, asked in splits.items():
        questions, golds = [question for question, _ in asked], [gold for _, gold in asked]
        for name, content in (("questions", questions), ("outputs", {"task": task, "golds": golds})):
            text = json.dumps(content, ensure_ascii=False)
            (out / f"{split}_{name}.json").write_text(text, encoding="utf-8")
