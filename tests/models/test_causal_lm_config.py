"""Reading a language model's sizes: what is not supported is named."""

import pytest

from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.types import UserError

FIELDS = {
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 123.0},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding_window 16"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
    ],
)
def test_unsupported_configs_are_named(change, message):
    fields = FIELDS | change
    with pytest.raises(UserError, match=message):
        CausalLMConfig.from_json(fields, "config.json")


def test_a_missing_size_is_named():
    fields = dict(FIELDS)
    del fields["intermediate_size"]
    with pytest.raises(UserError, match="intermediate_size"):
        CausalLMConfig.from_json(fields, "config.json")


def test_older_config_files_name_the_rotary_base_at_top_level():
    fields = dict(FIELDS)
    new = CausalLMConfig.from_json(fields)
    del fields["rope_parameters"]
    old = CausalLMConfig.from_json(fields | {"rope_theta": 123.0, "rope_scaling": None})
    assert new == old
    assert new.rope_theta == 123.0


def test_llama3_frequencies():
    """Fast turns stay, slow turns are divided by the factor, those between are blended (worked by hand)."""
    rope = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
    }  # fmt: skip
    divisors = CausalLMConfig.from_json(FIELDS | {"rope_parameters": rope}).rope_divisors
    # Frequencies 1, 0.1, 0.01, 0.001 turn 20.37, 2.037, 0.2037, 0.02037 times in 128 tokens.
    assert divisors == pytest.approx((1.0, 1 / (0.34573 + 0.65427 / 8), 8.0, 8.0), rel=1e-4)
