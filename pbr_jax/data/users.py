"""Whose history: names of users, so that two people never bear the same one.

Where a question is a user by itself, its id is only unique within its split. So such a user of the training
split carries that split's name, "train/110", and nobody else may have a name that begins like this.
Where data name their users, a name means the same person in every split.

And a part of a split: questions of as many users as may be, the same ones in every run.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import replace
from heapq import nsmallest
from pathlib import Path

from pbr_jax.base.types import Example, UserError
from pbr_jax.data.records import Record
from pbr_jax.options import Benchmark


def of_question(record: Record, key: str, benchmark: Benchmark) -> str:
    """The user that a question is by itself; field `key` holds its id.

    UserError for an id outside the training split that would be taken for a training user.
    """
    if benchmark.split == benchmark.training:
        return f"{benchmark.split}/{record.name(key)}"
    return of_person(record, key, benchmark)


def of_person(record: Record, key: str, benchmark: Benchmark) -> str:
    """The user that field `key` names; UserError as in `of_question`."""
    name, prefix = record.name(key), f"{benchmark.training}/"
    if benchmark.split != benchmark.training and name.startswith(prefix):
        raise record.fault(
            key,
            f"{name!r}, which a user of the training split may be called",
            f"a name that does not begin with {prefix!r}",
            f"rename it, or set --benchmark.training to another split than {benchmark.training}",
        )
    return name


def two_kinds(benchmark: Benchmark, place: Path) -> UserError:
    """The error for a split whose questions are users beside a training split that names its users.

    A question's id could be a training user's name by chance.
    """
    return UserError(
        f"{place}: found questions that are users by themselves, wanted a 'user_id' in each, as the training "
        f"split {benchmark.training} has them; take both splits from one setting, or set --benchmark.training"
    )


def renamed(example: Example, benchmark: Benchmark, alone: Set[str], place: Path) -> Example:
    """An example whose users were named for another training split, named for this one.

    `alone` are the splits whose questions are users by themselves. UserError as in the other functions.
    """
    record = Record({"id": example.id, "user_id": example.user_id}, place, f"question {example.id!r}")
    if benchmark.split not in alone:
        if benchmark.training in alone:
            of_person(record, "user_id", benchmark)
        return example
    user = of_question(record, "id", benchmark)
    return replace(example, user_id=user, profile=tuple(replace(d, user_id=user) for d in example.profile))


def unique(name: str, taken: set[str]) -> str:
    """The name, or "name#2", "name#3", ... where that is taken; the result is taken from now on."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}#{count}"
    taken.add(candidate)
    return candidate


def spread(examples: Iterable[Example], count: int) -> list[int]:
    """The positions, in ascending order, of `count` examples (or all) that are spread over their users.

    One question of each user comes first, then a second one of those that have it, and so on. The order of
    users, and that of a user's questions, is drawn by a hash of their names: it depends on no seed and, where
    questions are not named by their place (NQ, WebQuestions of TFDS, a user's second row in LongLaMP), on no
    order of the file. A larger sample holds every smaller one.
    """
    of_user: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for position, example in enumerate(examples):
        of_user[example.user_id].append((_draw(example.id), position))
    turns = (
        (turn, _draw(user), position)
        for user, own in of_user.items()
        for turn, (_, position) in enumerate(sorted(own))
    )
    return sorted(position for _, _, position in nsmallest(count, turns))


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8])
