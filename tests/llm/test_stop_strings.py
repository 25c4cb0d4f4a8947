"""Where stop strings end a text, against partitions of it and against all that may follow."""

import random

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import Sampling
from pbr_jax.llm.stop_strings import cut, is_settled, settled
from pbr_jax.options import Generate


def partitioned(text: str, stop: list[str]) -> str:
    return min((text.partition(one)[0] for one in stop), key=len, default=text)


def drawn(draw: random.Random, most: int) -> str:
    return "".join(draw.choices("ab\né", k=draw.randint(1, most)))


def test_the_text_before_the_stop_string_that_begins_first_is_kept():
    draw = random.Random(0)
    for _ in range(2000):
        text, stop = drawn(draw, 12), [drawn(draw, 4) for _ in range(draw.randint(0, 3))]
        assert cut(text, stop) == partitioned(text, stop)
    assert cut("Question: a", ["Question:"]) == ""
    assert cut("", ["a"]) == cut("abc", []).removeprefix("abc") == ""


def test_what_is_settled_no_further_text_changes_though_its_last_characters_do():
    draw, settled = random.Random(1), 0
    for _ in range(5000):
        begun, stop = drawn(draw, 16), [drawn(draw, 5) for _ in range(draw.randint(1, 3))]
        if is_settled(begun, stop):
            settled += 1
            for kept in range(
                len(begun) - 4, len(begun) + 1
            ):  # a token of a part of a character was the last
                assert cut(begun[:kept] + drawn(draw, 9), stop) == cut(begun, stop)
    assert settled > 500
    assert not is_settled("a a a a a a a a", ["b"])
    assert is_settled("b" + "a" * 4, ["b"])


def test_the_settled_beginning_stands_in_all_that_follows():
    draw, longest = random.Random(2), 0
    for _ in range(5000):
        begun, stop = drawn(draw, 24), [drawn(draw, 5) for _ in range(draw.randint(0, 3))]
        beginning = settled(begun, stop)
        longest = max(longest, len(beginning))
        for kept in range(max(0, len(begun) - 4), len(begun) + 1):
            assert cut(begun[:kept] + drawn(draw, 9), stop).startswith(beginning)
    assert longest > 15
    assert settled("a b c d e f", []) == "a b c d"


@pytest.mark.parametrize("stop", [("a", ""), ["a"], "a", (1,)])
def test_sampling_refuses_what_is_no_tuple_of_texts(stop):
    with pytest.raises(UserError, match=r"^generate\.stop is .*; it must be a tuple of texts, none of them"):
        Sampling(1, stop=stop)


def test_a_config_refuses_an_empty_text_in_one_line():
    from pbr_jax import config as c

    assert issubclass(c.Config().generate.__class__, Generate)
    with pytest.raises(UserError) as error:
        c.override(c.Config(), {"generate.stop": ["\n", ""]})
    assert str(error.value) == "generate.stop has an empty text; leave it out"
