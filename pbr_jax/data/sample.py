"""A part of a split: questions of as many users as may be, the same ones in every run."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from heapq import nsmallest

from pbr_jax.base.types import Example


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
