"""The sizes of a Llama-family language model, read from Hugging Face's `config.json` or from a GGUF file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbr_jax.models import gguf_file
from pbr_jax.types import UserError

FAMILIES = ("llama", "mistral", "qwen2")


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """The sizes of a model; every field is a static number."""

    vocab_size: int
    width: int  # of hidden states
    mlp_width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # fewer than num_heads: groups of heads share keys and values
    head_width: int
    context: int  # longest sequence the model was made for, in tokens
    norm_epsilon: float = 1e-6
    rope_theta: float = 10_000.0  # base of the rotary frequencies
    rope_divisors: tuple[float, ...] = ()  # of each frequency (head_width / 2); empty: ones
    tied: bool = True  # the output matrix is the embedding matrix
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly; "
                "check the model's config"
            )
        if self.rope_divisors and len(self.rope_divisors) != self.head_width // 2:
            raise UserError(
                f"{len(self.rope_divisors)} rotary factors for {self.head_width // 2} frequencies; "
                "check the model's config"
            )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], source: str = "config.json") -> "CausalLMConfig":
        """From a Hugging Face `config.json`; `UserError` names what is missing or not supported."""
        family = fields.get("model_type")
        if family not in FAMILIES:
            raise UserError(
                f"{source}: model_type {family!r} is not supported; a language model of {FAMILIES} is needed"
            )
        _refuse_unsupported(family, fields, source)
        try:
            heads, width = int(fields["num_attention_heads"]), int(fields["hidden_size"])
            head_width = int(fields.get("head_dim") or width // heads)
            rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
            theta = float(rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0)
            qkv_bias = family == "qwen2" or bool(fields.get("attention_bias", False))
            return cls(
                vocab_size=int(fields["vocab_size"]),
                width=width,
                mlp_width=int(fields["intermediate_size"]),
                num_layers=int(fields["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(fields.get("num_key_value_heads") or heads),
                head_width=head_width,
                context=int(fields.get("max_position_embeddings") or 2048),
                norm_epsilon=float(fields.get("rms_norm_eps", 1e-6)),
                rope_theta=theta,
                rope_divisors=_rope_divisors(rope, theta, head_width, source),
                tied=bool(fields.get("tie_word_embeddings", False)),
                qkv_bias=qkv_bias,
                output_bias=qkv_bias and family != "qwen2",
                mlp_bias=bool(fields.get("mlp_bias", False)),
            )
        except KeyError as error:
            raise UserError(
                f"{source} has no field {error}; a language model's config names its sizes"
            ) from None

    @classmethod
    def from_gguf(cls, file: gguf_file.GGUFFile) -> "CausalLMConfig":
        """From the metadata of a GGUF file of the `llama` architecture."""
        field = file.field
        heads, width = int(field("llama.attention.head_count")), int(field("llama.embedding_length"))
        head_width = int(file.metadata.get("llama.attention.key_length", width // heads))
        scaling = file.metadata.get("llama.rope.scaling.type", "none")
        rope = {"rope_type": "default" if scaling == "none" else scaling}
        if scaling == "linear":
            rope["factor"] = field("llama.rope.scaling.factor")
        theta = float(file.metadata.get("llama.rope.freq_base", 10_000.0))
        divisors = file.rope_divisors() or _rope_divisors(rope, theta, head_width, str(file.path))
        return cls(
            vocab_size=file.shape("token_embd.weight")[0],
            width=width,
            mlp_width=int(field("llama.feed_forward_length")),
            num_layers=int(field("llama.block_count")),
            num_heads=heads,
            num_kv_heads=int(file.metadata.get("llama.attention.head_count_kv", heads)),
            head_width=head_width,
            context=int(field("llama.context_length")),
            norm_epsilon=float(field("llama.attention.layer_norm_rms_epsilon")),
            rope_theta=theta,
            rope_divisors=divisors,
            tied="output.weight" not in file.names,
            qkv_bias="blk.0.attn_q.bias" in file.names,
            output_bias="blk.0.attn_output.bias" in file.names,
            mlp_bias="blk.0.ffn_down.bias" in file.names,
        )


def _refuse_unsupported(family: str, fields: Mapping[str, Any], source: str) -> None:
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise UserError(f"{source}: hidden_act {activation!r} is not supported; only silu is")
    window = fields.get("sliding_window")
    if window and (family == "mistral" or fields.get("use_sliding_window")):
        raise UserError(
            f"{source}: sliding_window {window} is not supported; use a model with full attention"
        )
    if fields.get("quantization_config"):
        raise UserError(
            f"{source}: quantised safetensors are not supported; give float weights or a GGUF file"
        )


def _rope_divisors(rope: Mapping[str, Any], theta: float, head_width: int, source: str) -> tuple[float, ...]:
    """What divides each rotary frequency: position interpolation and Llama 3's banded version of it.

    Llama 3 leaves wavelengths below `original / high_freq_factor` alone, divides those above
    `original / low_freq_factor` by `factor`, and blends the frequencies linearly in between.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind == "linear":
        return (float(rope["factor"]),) * (head_width // 2)
    if kind != "llama3":
        raise UserError(f"{source}: rope_type {kind!r} is not supported; use default, linear or llama3")
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(rope["original_max_position_embeddings"])
    divisors = []
    for i in range(head_width // 2):
        turns = original / (2 * math.pi * theta ** (2 * i / head_width))  # of this frequency in the context
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / (blend + (1 - blend) / factor))
    return tuple(divisors)
