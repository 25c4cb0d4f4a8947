"""Slot 2: whose histories are searched.

The asking user comes first and counts among the `m`. Others give documents only as `Store.visible` allows.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pbr_jax.config import Config
from pbr_jax.index import EVERYONE, ExactIndex, ScannIndex
from pbr_jax.pipeline.pipeline import Examples, FindNeighbours, Neighbour, Resources


def self_only(config: Config, resources: Resources) -> FindNeighbours:
    """The asking user alone."""

    def neighbours(examples: Examples) -> list[list[Neighbour]]:
        return [[Neighbour(example.user_id)] for example in examples]

    return neighbours


def random(config: Config, resources: Resources) -> FindNeighbours:
    """Others drawn uniformly without replacement, a function of the seed and the question alone."""
    options, names = config.neighbours, resources.store.users

    def neighbours(examples: Examples) -> list[list[Neighbour]]:
        found = []
        for example in examples:
            name = f"{config.seed}\0neighbours\0{example.user_id}\0{example.training}\0{example.id}"
            generator = np.random.default_rng(
                int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
            )
            drawn = generator.choice(len(names), min(options.m, len(names)), replace=False)
            others = [names[i] for i in drawn if names[i] != example.user_id]
            found.append(_with_self(example.user_id, others[: options.m - 1]))
        return found

    return neighbours


class _Pool(NamedTuple):
    """The users that had written something at a moment."""

    vectors: ExactIndex | ScannIndex
    codes: np.ndarray  # of the users, row by row


def similar(config: Config, resources: Resources) -> FindNeighbours:
    """Those of highest cosine with the asking user (CFRAG section 4.1.4), as vectors of `resources.users`."""
    options, users = config.neighbours, resources.users
    if users is None:
        raise ValueError("similar users are found by their vectors; none were given")
    names = resources.store.users
    pool = lru_cache(maxsize=2)(lambda moment: _pool(users.at(moment), options.index))

    def neighbours(examples: Examples) -> list[list[Neighbour]]:
        vectors = _unit(users.asking(examples))
        moments = [users.moment(example) for example in examples]
        found = [_with_self(example.user_id, []) for example in examples]
        if options.m == 1:
            return found
        for moment in dict.fromkeys(moments):
            some = [i for i, m in enumerate(moments) if m == moment]
            among = pool(moment)
            if not len(among.codes):
                continue
            # One more than asked for: the asking user is found too, and left out.
            nearest = among.vectors.search(vectors[some], options.skip + options.m, users=EVERYONE)
            for i, rows in zip(some, nearest.rows, strict=True):
                own = examples[i].user_id
                others = [names[code] for code in among.codes[rows[rows >= 0]] if names[code] != own]
                found[i] = _with_self(own, others[options.skip :][: options.m - 1])
        return found

    return neighbours


def _pool(vectors: np.ndarray, kind: str) -> _Pool:
    codes = np.flatnonzero(vectors.any(axis=1))
    if not len(codes):
        return _Pool(ExactIndex(vectors[:0], []), codes)
    make: Callable[..., ExactIndex | ScannIndex] = {"exact": ExactIndex, "scann": ScannIndex}[kind]
    known = [str(code) for code in codes]
    return _Pool(make(_unit(vectors[codes]), known, ids=known), codes)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _with_self(user: str, others: list[str]) -> list[Neighbour]:
    return [Neighbour(name) for name in (user, *others)]


METHODS = {"self": self_only, "contrastive": similar, "mean": similar, "random": random}
