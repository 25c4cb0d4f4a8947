"""Reading a language model's sizes: what is not supported is named."""

import math

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.families import FAMILIES
from pbr_jax.models.rope import json_ropes

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
        ({"model_type": "gemma2", "hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (
            {"model_type": "gemma2", "layer_types": ["chunked_attention", "full_attention"]},
            "layer_types ..chunked_attention",
        ),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "1 layer types for 2 layers"),
        ({"model_type": "gemma3_text", "sliding_window": None}, "no sliding_window"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0],
                    "long_factor": [1.0],
                    "original_max_position_embeddings": 32,
                }
            },
            "1 rotary factors for 4",
        ),
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
    assert new.rope.theta == 123.0


def test_older_files_of_gemma3_mean_the_same_as_newer_ones():
    sizes = FIELDS | {"num_hidden_layers": 7, "sliding_window": 16}
    del sizes["rope_parameters"]
    old = {
        "rope_theta": 5e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    new = {
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "full") * 3][:7],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    }
    configs = [CausalLMConfig.from_json(sizes | {"model_type": "gemma3_text"} | more) for more in (old, new)]
    assert configs[0] == configs[1]
    assert configs[0].windows == (16, 16, 0, 16, 16, 0, 16)
    assert configs[0].rope.divisors == (8.0,) * 128  # head_dim is 256 where the file does not say
    assert configs[0].local_rope is not None
    assert configs[0].local_rope.theta == 2e4


def test_older_files_of_phi3_mean_the_same_as_newer_ones():
    sizes = FIELDS | {"model_type": "phi3", "sliding_window": None, "hidden_size": 32}
    del sizes["rope_parameters"]
    factors = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [3.0, 4.0, 5.0]}
    old = {
        "rope_theta": 500.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 32,
        "rope_scaling": {"type": "longrope"} | factors,
    }  # fmt: skip
    new = {
        "original_max_position_embeddings": 32,
        "rope_parameters": factors
        | {
            "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
        },
    }  # fmt: skip
    configs = [CausalLMConfig.from_json(sizes | more) for more in (old, new)]
    assert configs[0] == configs[1]
    assert configs[0].rope.width == 6
    assert configs[0].rope.scale == pytest.approx(math.sqrt(1 + math.log(4) / math.log(32)))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_file_leaves_out_is_as_in_transformers(family):
    transformers = pytest.importorskip("transformers")
    sizes = {name: value for name, value in FIELDS.items() if name not in ("model_type", "rope_parameters")}
    if family == "phi3":
        sizes |= {"pad_token_id": 0}
    whole = transformers.AutoConfig.for_model(family, **sizes).to_dict()
    given = CausalLMConfig.from_json(whole)
    assert CausalLMConfig.from_json({"model_type": family} | sizes) == given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; a whole number from 1 to 16384"),
        ({"vocab_size": 10**9}, "vocab_size is 1000000000; a whole number from 1 to 16777216"),
        ({"intermediate_size": 1.5}, "intermediate_size is 1.5"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": True}, "num_key_value_heads is True"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings is 'many'"),
        ({"sliding_window": 10**12, "model_type": "mistral"}, "sliding_window is 1000000000000; a whole"),
        ({"sliding_window": -3, "model_type": "gemma2"}, "sliding_window is -3"),
        ({"rope_parameters": {"partial_rotary_factor": 3}}, "turn 24 numbers of a head, want .* width, 8;"),
        ({"rope_parameters": {"partial_rotary_factor": 0.4}}, "turn 3 numbers of a head, want an even"),
        ({"rms_norm_eps": []}, "a field is not of the kind"),
        ({"model_type": "gemma2", "layer_types": [[]]}, "a field is not of the kind"),
    ],
)
def test_sizes_that_no_model_has_are_refused(change, message):
    with pytest.raises(UserError, match=message) as error:
        CausalLMConfig.from_json(FIELDS | change, "some/config.json")
    assert str(error.value).startswith("some/config.json")
    assert "\n" not in str(error.value)


def test_llama3_frequencies():
    """Fast turns stay, slow turns are divided by the factor, those between are blended (worked by hand)."""
    rope = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
    }  # fmt: skip
    divisors = json_ropes(FAMILIES["llama"], {"rope_parameters": rope}, 8, 128, "config.json")[0].divisors
    # Frequencies 1, 0.1, 0.01, 0.001 turn 20.37, 2.037, 0.2037, 0.02037 times in 128 tokens.
    assert divisors == pytest.approx((1.0, 1 / (0.34573 + 0.65427 / 8), 8.0, 8.0), rel=1e-4)
