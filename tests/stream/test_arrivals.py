"""In which order questions arrive, and what was known before them: against plain counting."""

import random
from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest

from pbr_jax.base.types import Example, UserError
from pbr_jax.options import Stream
from pbr_jax.stream.arrival import Arrivals, arrivals, subsets


def questions(count: int, seed: int = 0, *, units: bool = True) -> list[Example]:
    """Questions of a few users and units, some of the same words, about a few documents."""
    draw = random.Random(seed)
    found = []
    for i in range(count):
        user, unit = f"u{draw.randrange(5)}", f"a{draw.randrange(6)}" if units else ""
        text = draw.choice(["Where?", "where?", "Who?", f"what {i}?"])
        relevant = tuple((f"d{draw.randrange(count)}",) for _ in range(draw.randrange(3)))
        found.append(Example(f"q{i}", user, text, text, None, relevant=relevant, unit=unit))
    return found


def made(examples: list[Example], seed: int = 0, **options) -> Arrivals:
    found = arrivals(Stream(**options), seed, examples)
    assert found is not None
    assert sorted(place for block in found.blocks for place in block) == list(range(len(examples)))
    return found


def flattened(blocks: list[list[int]]) -> list[int]:
    return [*chain(*blocks)]


def test_no_stream():
    assert arrivals(Stream(), 0, questions(3)) is None


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_released_and_shuffled(size: int):
    examples = questions(20)
    flat = {}
    for order in ("released", "shuffled"):
        blocks = made(examples, 4, size=size, order=order).blocks
        assert [len(block) for block in blocks[:-1]] == [size] * (len(blocks) - 1)
        flat[order] = flattened(blocks)
    assert flat["released"] == list(range(20))
    assert flat["shuffled"] == np.random.default_rng([4, 4]).permutation(20).tolist()


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("size", [1, 5, 12])
def test_units_arrive_whole(size: int, units: bool):
    examples = questions(40, units=units)
    orders = set()
    for seed in range(3):
        blocks = made(examples, seed, size=size, order="by_unit").blocks
        names = [[examples[i].unit or examples[i].user_id for i in block] for block in blocks]
        for block, own in zip(blocks, names, strict=True):
            assert len(block) <= size or len(set(own)) == 1  # none is cut in two
        assert len({name for own in names for name in own}) == sum(len(set(own)) for own in names)
        for block, after in pairwise(names):  # and no block has room for the next unit
            assert len(block) + after.count(after[0]) > size
        order = [i for block in blocks for i in block]
        for name in {name for own in names for name in own}:
            own = [i for i in order if name == (examples[i].unit or examples[i].user_id)]
            assert own == sorted(own)
        orders.add(tuple(order))
    assert len(orders) == 3


def test_a_shift_after_half_of_the_units():
    examples = questions(60)
    halves, orders = [], set()
    for seed in range(4):
        found = made(examples, seed, size=7, order="shifted")
        order = flattened(found.blocks)
        before = {examples[i].unit for i in order[: found.shift]}
        after = {examples[i].unit for i in order[found.shift :]}
        assert before.isdisjoint(after)
        assert (len(before), len(after)) == (3, 3)
        assert order[: found.shift] != sorted(order[: found.shift])
        halves.append(frozenset(before))
        orders.add(tuple(order))
    assert len(set(halves)) > 1
    assert len(orders) == 4
    with pytest.raises(UserError, match="all 3 questions are of one user or unit"):
        made([Example(f"{i}", "u", "q", "q", None) for i in range(3)], size=1, order="shifted")


@pytest.mark.parametrize("size", [1, 2, 100])
def test_rounds(size: int):
    examples = questions(23)
    blocks = made(examples, size=size, order="by_round").blocks
    asked: Counter[str] = Counter()
    rounds = []
    for example in examples:
        rounds.append(asked[example.user_id])
        asked[example.user_id] += 1
    wanted = []
    for number in range(max(rounds) + 1):
        own = [i for i, one in enumerate(rounds) if one == number]
        wanted += [own[start : start + size] for start in range(0, len(own), size)]
    assert blocks == wanted
    assert all(len({examples[i].user_id for i in block}) == len(block) for block in blocks)


def test_folds_of_users():
    examples = questions(40, units=False)
    found = made(examples, protocol="cross_users")
    assert [{examples[i].user_id for i in fold} for fold in found.blocks] == [
        {user} for user in dict.fromkeys(example.user_id for example in examples)
    ]
    drawn = [made(examples, seed, protocol="cross_users", folds=2).blocks for seed in range(5)]
    for folds in drawn:
        one, two = ({examples[i].user_id for i in fold} for fold in folds)
        assert one.isdisjoint(two)
        assert {len(one), len(two)} == {2, 3}
        assert all(fold == sorted(fold) for fold in folds)
    assert len({str(folds) for folds in drawn}) > 1
    by_unit = made(questions(40), protocol="cross_users")  # units, where questions have them
    assert len(by_unit.blocks) == 6


@pytest.mark.parametrize(
    ("options", "count", "error"),
    [
        ({}, 1, "the questions are of 1 user or units; want at least 2"),
        ({"folds": 9}, 3, "cross_users with 9, and the questions are of 3 users or units; want at least 9"),
        ({}, 101, "stream.folds is none, which learns anew for each of 101 users or units"),
    ],
)
def test_too_few_and_too_many_users(options: dict, count: int, error: str):
    examples = [Example(f"{i}", f"u{i}", "q", "q", None) for i in range(count)]
    with pytest.raises(UserError, match=error):
        made(examples, protocol="cross_users", **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"order": "by_unit"}, "stream.size is none, so there is no stream"),
        ({"keep": 1}, "stream.size is none, so there is no stream"),
        ({"protocol": "cross_users", "size": 3}, "set stream.size to none and stream.order to released"),
        (
            {"protocol": "cross_users", "order": "shuffled"},
            "set stream.size to none and stream.order to released",
        ),
        ({"protocol": "cross_users", "folds": 1}, "stream.folds is 1, want at least 2"),
        ({"size": 3, "folds": 2}, "stream.folds is 2, and stream.protocol prequential has none"),
    ],
)
def test_options_that_contradict_each_other(options: dict, error: str):
    with pytest.raises(UserError, match=error) as found:
        Stream(**options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("order", ["released", "shuffled", "by_unit", "shifted", "by_round", "cross_users"])
def test_subsets_by_counting(order: str, shared: bool):
    examples = questions(50, 3)
    cross = {"protocol": "cross_users", "folds": 4}
    found = made(examples, 1, **(cross if order == "cross_users" else {"size": 8, "order": order}))
    parts = subsets(found, examples, shared=shared)
    order_of = flattened(found.blocks)
    block_of = {i: number for number, block in enumerate(found.blocks) for i in block}
    assert found.places == [(block_of[i], order_of.index(i)) for i in range(50)]
    half = [order_of.index(i) >= 25 for i in range(50)]
    assert parts.get("second_half") == (None if order == "cross_users" else half)
    if order == "shifted":
        assert parts["after_shift"] == [order_of.index(i) >= (found.shift or 0) for i in range(50)]
        assert parts["before_shift"] == [not after for after in parts["after_shift"]]
    else:
        assert "after_shift" not in parts
    for i, asked in enumerate(examples):
        taught = [
            other for j, other in enumerate(examples)
            if (block_of[j] != block_of[i] if order == "cross_users" else block_of[j] < block_of[i])
        ]  # fmt: skip
        seen = any(
            set(sum(asked.relevant, ())) & set(sum(other.relevant, ()))
            and (shared or asked.user_id == other.user_id)
            for other in taught
        )
        if shared or order != "cross_users":
            assert (parts["seen"][i], parts["new"][i]) == (seen, bool(asked.relevant) and not seen)
        else:
            assert not {"seen", "new"} & parts.keys()
        same = any(o.query.lower() == asked.query.lower() and o.unit != asked.unit for o in taught)
        assert (parts["recurring"][i], parts["not_recurring"][i]) == (same, not same)
    assert all(any(members) for members in parts.values())
