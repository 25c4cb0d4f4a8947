"""In which order the questions of a stream arrive, and which of them could be learned from before others."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.options import Stream

_MOST = 100  # folds that are made without being asked for: each is learned for by itself
_UNITS = 10  # the same where each is a training


class Arrivals(NamedTuple):
    """`blocks`: the places in the data of each block's questions, in the order of arrival. `shift`: how many
    questions arrive before the shift of a shifted stream. `folds`: blocks are folds of users, in no order."""

    blocks: list[list[int]]
    shift: int | None = None
    folds: bool = False

    @property
    def places(self) -> list[tuple[int, int]]:
        """The block of each question in the data, and its place in the order of arrival."""
        order = [(place, number) for number, block in enumerate(self.blocks) for place in block]
        arrived = {place: (number, nth) for nth, (place, number) in enumerate(order)}
        return [arrived[place] for place in range(len(order))]


def arrivals(options: Stream, seed: int, examples: Sequence[Example]) -> Arrivals | None:
    """How these questions arrive; None: there is no stream. Nothing but drawn orders depends on the seed.

    Raises UserError where there are too few users for the options.
    """
    if not options.active:
        return None
    draw, units = np.random.default_rng([seed, 4]), _grouped(map(cluster, examples))
    if options.protocol != "prequential":
        return Arrivals(_folds(options, draw, units), folds=True)
    size, count = options.size or 1, len(examples)
    if options.order == "by_unit":
        return Arrivals(_whole([units[i] for i in draw.permutation(len(units))], size))
    if options.order == "by_round":
        return Arrivals([block for some in _rounds(examples) for block in _cut(some, size)])
    if options.order == "shifted":
        order, shift = _shifted(draw, units)
        return Arrivals(_cut(order, size), shift)
    order = [*range(count)] if options.order == "released" else draw.permutation(count).tolist()
    return Arrivals(_cut(order, size))


def cluster(example: Example) -> str:
    """What the question belongs to: its article or dialogue, or else its user."""
    return example.unit or example.user_id


def is_drawn(options: Stream) -> bool:
    """Whether the order or the folds depend on the seed."""
    return options.folds is not None or options.order in ("shuffled", "by_unit", "shifted")


def _grouped(names: Iterable[Hashable]) -> list[list[int]]:
    """The places of each name, in the order of the names' first places."""
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        found[name].append(place)
    return [*found.values()]


def _cut(order: list[int], size: int) -> list[list[int]]:
    return [order[start : start + size] for start in range(0, len(order), size)]


def _whole(units: list[list[int]], size: int) -> list[list[int]]:
    """Units in blocks of at most `size` questions; one that is larger is a block by itself."""
    blocks: list[list[int]] = []
    for unit in units:
        if not blocks or len(blocks[-1]) + len(unit) > size:
            blocks.append([])
        blocks[-1] += unit
    return blocks


def _rounds(examples: Sequence[Example]) -> list[list[int]]:
    """The first questions of all users, the second ones, and so on."""
    rounds: list[list[int]] = []
    asked: Counter[str] = Counter()
    for place, example in enumerate(examples):
        if asked[example.user_id] == len(rounds):
            rounds.append([])
        rounds[asked[example.user_id]].append(place)
        asked[example.user_id] += 1
    return rounds


def _shifted(draw: np.random.Generator, units: list[list[int]]) -> tuple[list[int], int]:
    if len(units) < 2:
        raise UserError(
            f"stream.order is shifted, and all {sum(map(len, units))} questions are of one user or unit, so "
            "there is nothing to shift to; take another order"
        )
    drawn = draw.permutation(len(units))
    halves = ([place for i in some for place in units[i]] for some in np.split(drawn, [len(drawn) // 2]))
    before, after = (draw.permutation(half).tolist() for half in halves)
    return [*before, *after], len(before)


def _folds(options: Stream, draw: np.random.Generator, units: list[list[int]]) -> list[list[int]]:
    """Folds of as many units each as can be."""
    count, found = options.folds, len(units)
    if count is None and options.protocol == "cross_units" and found > _UNITS:
        count = _UNITS
    if found < 2 or (count or 0) > found:
        raise UserError(
            f"stream.protocol is {options.protocol} with {count or 'a fold for each user'}, and the "
            f"questions are of {found} user{'s' * (found != 1)} or units; want at least {max(2, count or 0)}"
        )
    if count is None and found > _MOST:
        raise UserError(
            f"stream.folds is none, which learns anew for each of {found} users or units; set it to a "
            "number, such as 10"
        )
    drawn, number = (np.arange(found), found) if count is None else (draw.permutation(found), count)
    return [sorted(place for i in drawn[fold::number] for place in units[i]) for fold in range(number)]


# -- what could be learned before ----------------------------------------------------------------------


def subsets(found: Arrivals, examples: Sequence[Example], *, shared: bool) -> dict[str, list[bool]]:
    """Whether each question belongs to a part of a stream that is reported by itself.

    `second_half`: of the order of arrival. `before_shift`, `after_shift`. `seen`: one of its relevant
    documents was relevant to a question of an earlier block (of another fold), `new`: none was. `recurring`:
    another user asked the same, in any case, in an earlier block (another fold), `not_recurring`. `shared`:
    relevant documents are shared ones, and else each user's own.
    """
    places, count = found.places, len(examples)
    parts: dict[str, list[bool]] = {}
    if not found.folds:
        parts["second_half"] = [2 * nth >= count for _, nth in places]
    if found.shift is not None:
        parts["before_shift"] = [nth < found.shift for _, nth in places]
        parts["after_shift"] = [nth >= found.shift for _, nth in places]
    blocks = [number for number, _ in places]
    relevant = [{("" if shared else e.user_id, id) for group in e.relevant for id in group} for e in examples]
    if shared or not found.folds:  # no other fold's question can be about a user's own documents
        known = _known(found, relevant, blocks)
        parts["seen"] = [seen and bool(ids) for seen, ids in zip(known, relevant, strict=True)]
        parts["new"] = [bool(ids) and not seen for seen, ids in zip(known, relevant, strict=True)]
    who = blocks if found.folds else [*map(cluster, examples)]
    recurring = _known(found, [{e.query.casefold()} for e in examples], who)
    if any(recurring):
        parts |= {"recurring": recurring, "not_recurring": [not one for one in recurring]}
    return parts


def _known(found: Arrivals, keys: Sequence[set], who: Sequence[Hashable]) -> list[bool]:
    """Whether a key of each question came from another of `who` in what its state was learned from."""
    heard: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
    known = [False] * len(keys)

    def learn(block: Sequence[int]) -> None:
        for i in block:
            for key in keys[i]:
                heard[key].add(who[i])

    for block in found.blocks if found.folds else ():
        learn(block)
    for block in found.blocks:
        for i in block:
            known[i] = any(len(heard[key]) > (who[i] in heard[key]) for key in keys[i])
        if not found.folds:
            learn(block)
    return known
