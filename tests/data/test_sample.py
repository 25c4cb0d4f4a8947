"""A sample has as many users as can be, is drawn once and for all, and grows without losing anyone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import Example
from pbr_jax.data.users import spread

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
