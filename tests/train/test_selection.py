"""Which questions choose the step."""

import numpy as np
import pytest

from pbr_jax.base.types import Feedback
from pbr_jax.train.selection import FEWEST, divided


def question(*values: float) -> Feedback:
    return Feedback(np.arange(len(values)), np.array(values, np.float32))


FLAT, GRADED, ALONE = question(0.5, 0.52, 0.5), question(0.2, 0.9, 0.4), question(0.7)


@pytest.mark.parametrize(("share", "wanted"), [(0.1, 8), (0.2, 10), (0.3, 15)])
def test_informative_questions_are_held_out_and_at_least_eight(share: float, wanted: int):
    feedback = [FLAT, GRADED, ALONE] * 50
    learned, held, informative = divided(feedback, None, share=share, least=0.05, seed=3)
    assert (informative, len(held)) == (50, wanted)
    assert (held % 3 == 1).all()
    assert sorted([*learned, *held]) == [i for i in range(150) if i % 3 < 2]
    other = divided(feedback, None, share=share, least=0.05, seed=4)
    assert not np.array_equal(held, other.held)  # drawn by the seed
    np.testing.assert_array_equal(held, divided(feedback, None, share=share, least=0.05, seed=3).held)
    assert divided(feedback, None, share=share, least=0.0, seed=3).informative == 100


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_where_few_are_informative_none_is_held_out(share: float):
    feedback = [GRADED] * (2 * FEWEST - 1) + [FLAT] * 40
    learned, held, _ = divided(feedback, None, share=share, least=0.05, seed=0)
    assert (len(learned), len(held)) == (55, 0)
    one_more = divided([*feedback, GRADED], None, share=share, least=0.05, seed=0)
    assert len(one_more.held) == (FEWEST if share == 0.2 else 0)


def test_no_user_is_on_both_sides():
    feedback = [GRADED, FLAT, GRADED, GRADED] * 15
    owners = [f"u{i // 4}" for i in range(60)]
    learned, held, _ = divided(feedback, owners, share=0.2, least=0.05, seed=0)
    assert len(held) == 9  # three users with three informative questions each
    chosen = {owners[i] for i in held}
    assert chosen.isdisjoint(owners[i] for i in learned)
    assert len(learned) == 60 - 4 * len(chosen)
    assert not len(divided(feedback, ["u"] * 60, share=0.2, least=0.05, seed=0).held)
