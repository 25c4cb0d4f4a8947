"""A sample has as many users as can be, is drawn once and for all, and grows without losing anyone."""

import dataclasses
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pbr_jax.base.types import Example
from pbr_jax.data import read
from pbr_jax.data.users import spread
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.writing import import_table
from pbr_jax.options import Benchmark

USERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


def asked(users: list[str]) -> list[Example]:
    return [Example(id=f"{i}", user_id=user, query="", input="", target=None) for i, user in enumerate(users)]


@given(USERS, st.integers(1, 50))
def test_no_user_has_two_questions_more_than_another_who_has_more(users: list[str], count: int) -> None:
    chosen = spread(asked(users), count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, len(users))
    total, taken = Counter(users), Counter(users[position] for position in chosen)
    most = max(taken.values())
    assert all(taken[user] >= min(total[user], most - 1) for user in total)


@given(USERS, st.integers(1, 40), st.randoms())
def test_a_sample_grows_and_depends_on_no_order(users: list[str], count: int, random) -> None:
    examples = asked(users)
    names = {examples[position].id for position in spread(examples, count)}
    assert names <= {examples[position].id for position in spread(examples, count + 1)}
    random.shuffle(examples)
    assert names == {examples[position].id for position in spread(examples, count)}


def test_users_are_drawn_rather_than_taken_from_the_start() -> None:
    chosen = spread(asked([f"user {i}" for i in range(1000)]), 100)
    assert 400 < sum(chosen) / 100 < 600


@pytest.mark.long
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("12")), min_size=2, max_size=12))
def test_questions_of_users_without_a_history_can_be_left_out(rows: list[tuple[str, str]]) -> None:
    """A row sees its user's rows of earlier days; what is left is sampled as any other questions are."""
    assume(len({user for user, _ in rows}) < len(rows))  # nobody else would have a history
    table = [
        {"id": f"r{i}", "user": user, "time": f"2024-01-0{day}", "input": "say", "output": f"said {i}"}
        for i, (user, day) in enumerate(rows)
    ]
    with TemporaryDirectory() as folder:
        import_table(table, Path(folder) / "data", Columns(id="id"))
        keep = Benchmark(name="own", root=str(Path(folder) / "data"))
        skip = dataclasses.replace(keep, cold_start="skip")
        every = list(read(keep))
        warm = [example for example in every if example.profile]
        assert list(read(skip)) == warm
        for count in range(1, len(warm) + 1):
            assert list(read(skip, count)) == [warm[position] for position in spread(warm, count)]
    first = {user: min(day for name, day in rows if name == user) for user, _ in rows}
    assert {e.id for e in warm} == {f"r{i}" for i, (user, day) in enumerate(rows) if day > first[user]}
