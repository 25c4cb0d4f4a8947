"""Reading rotary positions."""

import pytest

from pbr_jax.models.families import FAMILIES
from pbr_jax.models.rope import json_ropes


def test_llama3_frequencies():
    """Fast turns stay, slow turns are divided by the factor, those between are blended (worked by hand)."""
    rope = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
    }  # fmt: skip
    divisors = json_ropes(FAMILIES["llama"], {"rope_parameters": rope}, 8, 128, "config.json")[0].divisors
    # Frequencies 1, 0.1, 0.01, 0.001 turn 20.37, 2.037, 0.2037, 0.02037 times in 128 tokens.
    assert divisors == pytest.approx((1.0, 1 / (0.34573 + 0.65427 / 8), 8.0, 8.0), rel=1e-4)
