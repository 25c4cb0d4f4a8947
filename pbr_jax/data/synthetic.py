"""A made-up circle of friends, written to disk in LaMP's time-split format.

The world. Users live in latent cohorts. Everybody is asked what they will bring to an outing. A cohort
prefers some topics and has, for every topic, a habitual thing to bring, the tag ("the blue kite", ...), and a
style of answering: a greeting, a line, a sign-off. A user inherits the cohort's habits one by one or has
an own one instead. Every answer follows each habit only with probability `follow`. The question tells
nothing of them: an answer is no copy of it.

Three kinds of users, so that neither the own history nor similar users' histories are enough alone:

- *regulars* answered 12 to 40 times and left the cohort's habit on a third of the topics; they are
  asked about topics that their history shows at least twice;
- *newcomers* answered 1 to 4 times and mostly do as their cohort does; they are asked about a topic
  that does not occur in their own history, but does in those of their cohort;
- *cold* users are asked about their first document, and have no history at all.

A user answers on several topics with a different tag each, so the documents on the query's topic
tell more than the latest ones. Nothing here knows how any method works: no embedding, no similarity
threshold, no score. What is latent goes to `truth.json`, which readers never open.

Documents carry the LaMP-4 fields (`text` is the question, `title` the answer) or, for task `lamp_2`, films
of the same world with a tag out of LaMP-2's fifteen (`description`, `tag`). A question also carries its
`date`, which LaMP's does not: the only way to know what lay in the past of a user without a history.
"""

import filecmp
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.data import synthetic_words
from pbr_jax.data.synthetic_world import (
    Cohort,
    Habits,
    Post,
    Question,
    User,
    Writer,
    draw_cohort,
    draw_kinds,
    draw_user,
)
from pbr_jax.tasks import released

SPLITS = ("train", "dev")
MOVIE_TAGS = released("lamp_2").labels


def generate(
    folder: Path,
    *,
    seed: int = 0,
    users: int = 60,
    cohorts: int = 6,
    task: str = "lamp_4",
    follow: float = 0.88,
    newcomers: float = 0.4,
    cold: float = 0.05,
) -> None:
    """Write `{train,dev}_{questions,outputs}.json` and `truth.json` into `folder`, deterministic per seed.

    `follow` is the chance that a document follows a habit; `newcomers` and `cold` are shares of the
    users (at least one of each from 10 users on). Memory stays flat in `users`; files appear when
    all are complete. Raises UserError for values outside their ranges, and where one of these files
    exists already with other content: nothing is overwritten.
    """
    _check(users=users, cohorts=cohorts, task=task, follow=follow, newcomers=newcomers, cold=cold)
    tags = synthetic_words.TAGS if task == "lamp_4" else MOVIE_TAGS
    circles = [draw_cohort(random.Random(f"{seed}/cohort/{index}"), tags) for index in range(cohorts)]
    kinds = draw_kinds(random.Random(f"{seed}/kinds"), users, newcomers, cold)
    world = {"seed": seed, "task": task, "follow": follow, "tags": list(tags), "cohorts": _world(circles)}
    with _lists(folder, task, world) as lists:
        for index, kind in enumerate(kinds):
            rng = random.Random(f"{seed}/user/{index}")
            user = draw_user(rng, index, kind, index % cohorts, circles, tags)
            posts, questions = Writer(rng, user, circles[user.cohort], task, tags, follow).life()
            for question in questions:
                _add_question(lists, task, user, question, posts[: question.before])
            lists["truth"].add(_truth(user, posts, questions))


def _check(*, users: int, cohorts: int, task: str, **shares: float) -> None:
    """UserError for arguments that describe no world."""
    for name, value in (("users", users), ("cohorts", cohorts)):
        if value < 1:
            raise UserError(f"synthetic data: {name} is {value}; wanted 1 or more")
    if task not in ("lamp_4", "lamp_2"):
        raise UserError(f"synthetic data: task is {task!r}; wanted 'lamp_4' or 'lamp_2'")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise UserError(f"synthetic data: {name} is {value}; wanted a share between 0 and 1")
    if shares["newcomers"] + shares["cold"] > 1:
        raise UserError("synthetic data: newcomers and cold add up to more than 1; lower one of them")


# --- files -----------------------------------------------------------------------------------------


def _input(record: dict[str, str], task: str) -> str:
    if task == "lamp_2":
        tags = ", ".join(MOVIE_TAGS)
        request = "Pick the tag that this viewer would give the film and answer with that tag alone."
        return f"{request} tags: [{tags}] description: {record['description']}"
    return f"Repeat what this person always says. article: {record['text']}"


def _world(circles: list[Cohort]) -> list[dict[str, Any]]:
    return [{"topics": [topic.name for topic in c.topics], **_habits(c.habits)} for c in circles]


def _habits(habits: Habits) -> dict[str, Any]:
    return {"style": asdict(habits.style), "tags": habits.tags}


class _List:
    """A JSON list that grows on disk under a temporary name and gets its own name when complete."""

    def __init__(self, path: Path, head: str, tail: str) -> None:
        self.path, self.tail, self.separator = path, tail, "\n"
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self.file = self.temporary.open("w", encoding="utf-8")
        self.file.write(head)

    def add(self, record: dict[str, Any]) -> None:
        self.file.write(self.separator + json.dumps(record, ensure_ascii=False))
        self.separator = ",\n"

    def close(self) -> None:
        """Completes the file; UserError where there is another one of its name."""
        self.file.write(f"\n{self.tail}\n")
        self.file.close()
        if self.path.exists() and not filecmp.cmp(self.path, self.temporary, shallow=False):
            raise UserError(
                f"{self.path}: found a file with other content, wanted to write synthetic data; "
                "choose another folder or remove the file"
            )

    def finish(self) -> None:
        os.replace(self.temporary, self.path)

    def discard(self) -> None:
        self.file.close()
        self.temporary.unlink(missing_ok=True)


@contextmanager
def _lists(folder: Path, task: str, world: dict[str, Any]) -> Iterator[dict[str, _List]]:
    """The five files by name; all of them appear at the end, or none after an error."""
    lists: dict[str, _List] = {}
    golds = json.dumps({"task": task.replace("lamp", "LaMP")})[:-1] + ', "golds": ['
    heads = {"truth": (json.dumps({"world": world})[:-1] + ', "users": [', "]}")}
    for split in ("train", "dev"):
        heads |= {f"{split}_questions": ("[", "]"), f"{split}_outputs": (golds, "]}")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (head, tail) in heads.items():
            lists[name] = _List(folder / f"{name}.json", head, tail)
        yield lists
        for written in lists.values():
            written.close()
        for written in lists.values():
            written.finish()
    except OSError as error:
        raise UserError(f"{folder}: cannot write synthetic data ({error}); choose another folder") from error
    finally:
        for written in lists.values():
            written.discard()  # what is finished has no temporary file any more


def _add_question(
    lists: dict[str, _List], task: str, user: User, question: Question, profile: list[Post]
) -> None:
    record = question.post.record
    lists[f"{question.split}_questions"].add(
        {
            "id": record["id"],
            "user_id": user.id,
            "input": _input(record, task),
            "date": record["date"],
            "profile": [post.record for post in profile],
        }
    )
    answer = record["tag" if task == "lamp_2" else "title"]
    lists[f"{question.split}_outputs"].add({"id": record["id"], "output": answer})


def _truth(user: User, posts: list[Post], questions: list[Question]) -> dict[str, Any]:
    """What is latent about a user: for tests and analyses only."""
    documents = {
        post.record["id"]: {"topic": post.topic, "tag": post.tag, "date": post.record["date"]}
        for post in posts
    }
    return {
        "user_id": user.id,
        "kind": user.kind,
        "cohort": user.cohort,
        **_habits(user.habits),
        "documents": documents,
        "questions": {question.post.record["id"]: question.split for question in questions},
    }
