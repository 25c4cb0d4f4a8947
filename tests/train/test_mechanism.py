"""Can PURPLE's policy learn that a record which fits the query is worth more? On users it has not seen.

`benchmarks/mechanism.py` prints the table of all fusions, strengths and seeds.
"""

import pytest
from planted_match import MatchWorld, learned, options

OF_ATTAINABLE = 0.8  # the bar: of the rank correlation that the true cosine itself has with the rewards


def share(fusion: str, strength: float, seed: int, questions: int = 200, **changes: int) -> float:
    """Of what is attainable on new users."""
    world, new = (MatchWorld(strength, s, questions) for s in (seed, 100 + seed))
    found, _ = learned(world, new, options(**changes, fusion=fusion), seed)
    return found / new.attainable()


@pytest.mark.long
def test_match_learns_what_fits():
    assert share("match", 1.0, 0) > OF_ATTAINABLE


@pytest.mark.long
def test_the_papers_fusion_does_not():
    assert share("cross_attention", 1.0, 0) < 0.5 * OF_ATTAINABLE


@pytest.mark.long
def test_match_learns_it_with_another_seed_and_where_records_see_each_other():
    assert share("match", 1.0, 2, 400, num_layers=1) > OF_ATTAINABLE


@pytest.mark.long
def test_match_learns_a_weaker_effect_too():
    assert share("match", 0.5, 0, 600) > OF_ATTAINABLE
