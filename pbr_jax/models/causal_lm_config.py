"""The sizes of a decoder-only language model, read from Hugging Face's `config.json` or from a GGUF file.

A family (`families`) is a set of values for the fields of `CausalLMConfig`; the model's code knows the fields
alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pbr_jax.base.types import UserError
from pbr_jax.models import gguf_file
from pbr_jax.models.families import FAMILIES, Family
from pbr_jax.models.fields import MOST_HEAD_WIDTH, MOST_HEADS, MOST_LAYERS, check_object, size, sound
from pbr_jax.models.rope import Rope, gguf_rope, json_ropes

TYPES = (*FAMILIES, "gemma3")
"""The model types of `config.json` that are read. Of `gemma3`, only the language model."""

_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, kw_only=True)
class DecoderLayerConfig:
    """The sizes of a layer and what it does; every field is static."""

    width: int  # of hidden states
    mlp_width: int
    num_heads: int
    num_kv_heads: int  # fewer than num_heads: groups of heads share keys and values
    head_width: int  # num_heads * head_width need not be width
    activation: Literal["silu", "gelu_tanh", "relu"] = "silu"
    gated: bool = True  # the MLP multiplies act(gate) and up; else it is act(up)
    norm_epsilon: float = 1e-6
    norm_offset: float = 0.0  # added to the weights of norms
    qk_norm: bool = False  # queries and keys are normed, head by head
    post_norms: bool = False  # attention and MLP are normed again before they are added
    attention_scale: float | None = None  # of scores; None: head_width ** -0.5
    attention_cap: float | None = None  # scores become cap * tanh(score / cap)
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    fused: bool = False  # query, key and value are one map in Hugging Face's files, and gate and up another

    @property
    def scale(self) -> float:
        """What queries are multiplied with."""
        return self.attention_scale or self.head_width**-0.5


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig(DecoderLayerConfig):
    """The sizes of a model and what its layers do."""

    vocab_size: int
    num_layers: int
    context: int  # longest sequence the model was made for, in tokens
    rope: Rope
    local_rope: Rope | None = None  # of the layers with a window; None: the same as the others
    windows: tuple[int, ...] = ()  # tokens that each layer sees, its own included; 0: all; empty: all, all
    logit_cap: float | None = None  # logits become cap * tanh(logit / cap)
    scale_embedding: bool = False  # by width ** 0.5
    tied: bool = True  # the output matrix is the embedding matrix

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly; "
                "check the model's config"
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise UserError(
                f"{len(self.windows)} layer types for {self.num_layers} layers; check the model's config"
            )
        if self.local_rope and not self.windows:
            raise UserError(
                "no sliding_window, and layers with one have their own rotation; check the model's config"
            )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], source: str = "config.json") -> "CausalLMConfig":
        """From a Hugging Face `config.json`; `UserError` names what is missing or not supported."""
        check_object(fields, source)
        name = fields.get("model_type")
        if name not in TYPES:
            raise UserError(
                f"{source}: model_type {name!r} is not supported; a language model of {TYPES} is needed"
            )
        if fields.get("quantization_config"):
            raise UserError(
                f"{source}: quantised safetensors are not supported; give float weights or a GGUF file"
            )
        if name == "gemma3":
            tied = {
                "tie_word_embeddings": fields.get("tie_word_embeddings", True)
            }  # transformers reads it here
            name, fields = "gemma3_text", {**(fields.get("text_config") or {}), **tied}
        family = FAMILIES[name]
        with sound(source):
            return cls(**_from_json(family, {**family.absent, **fields}, source))

    @classmethod
    def from_gguf(cls, file: gguf_file.GGUFFile) -> "CausalLMConfig":
        """From the metadata of a GGUF file of one of `families.ARCHITECTURES`."""
        with sound(str(file.path)):
            return cls(**_from_gguf(file))


def _from_json(family: Family, fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    heads = size(fields, "num_attention_heads", source, most=MOST_HEADS)
    width = size(fields, "hidden_size", source)
    head_width = size(fields, "head_dim", source, default=width // heads, most=MOST_HEAD_WIDTH)
    context = size(fields, "max_position_embeddings", source, default=2048)
    layers = size(fields, "num_hidden_layers", source, most=MOST_LAYERS)
    windows = _windows(family, fields, layers, source)
    rope, local_rope = json_ropes(family, fields, head_width, context, source)
    bias = bool(fields.get("attention_bias", False))
    if family.scaled and fields.get("use_bidirectional_attention"):
        raise UserError(f"{source}: use_bidirectional_attention is not supported; use a language model")
    return dict(
        vocab_size=size(fields, "vocab_size", source),
        width=width,
        mlp_width=size(fields, "intermediate_size", source),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=size(fields, "num_key_value_heads", source, default=heads, most=MOST_HEADS),
        head_width=head_width,
        context=context,
        rope=rope,
        local_rope=local_rope,
        windows=windows,
        activation=_activation(family, fields, source),
        norm_epsilon=float(fields.get("rms_norm_eps", 1e-6)),
        tied=bool(fields.get("tie_word_embeddings", False)),
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias and family.qkv_bias is None,
        mlp_bias=bool(fields.get("mlp_bias", False)),
        attention_scale=float(fields["query_pre_attn_scalar"]) ** -0.5 if family.scaled else None,
        **_caps(family, fields),
        **family.layers,
    )


def _caps(family: Family, fields: Mapping[str, Any], prefix: str = "") -> dict[str, float | None]:
    """The caps of scores and of logits; in either format the same fields."""
    names = {"attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
    values = {ours: fields.get(prefix + theirs) for ours, theirs in names.items()}
    if family.layers.get("qk_norm"):  # Gemma 3 norms queries and keys in the place of a cap
        values["attention_cap"] = None
    return {name: float(value) if value and family.scaled else None for name, value in values.items()}


def _activation(family: Family, fields: Mapping[str, Any], source: str) -> str:
    field, default = family.activation
    name = fields.get(field) or default
    if name not in tuple(_ACTIVATIONS):
        raise UserError(f"{source}: {field} {name!r} is not supported; only {' and '.join(_ACTIVATIONS)} are")
    return _ACTIVATIONS[name]


def _windows(family: Family, fields: Mapping[str, Any], layers: int, source: str) -> tuple[int, ...]:
    """The window of every layer, 0: none; () where no layer has one."""
    if not fields.get("sliding_window") or family.windows == "none":
        return ()
    if family.windows == "last" and not fields.get("use_sliding_window"):
        return ()
    window = size(fields, "sliding_window", source)
    types = fields.get("layer_types")
    if family.windows == "all":
        slides = [True] * layers
    elif types:
        unknown = set(types) - {"sliding_attention", "full_attention"}
        if unknown:
            raise UserError(
                f"{source}: layer_types {sorted(unknown)} are not supported; only sliding_attention and "
                "full_attention are"
            )
        slides = [kind == "sliding_attention" for kind in types]
    elif family.windows == "last":
        slides = [layer >= int(fields.get("max_window_layers", 28)) for layer in range(layers)]
    else:
        slides = _but_every(int(fields.get("sliding_window_pattern") or family.period), layers)
    return tuple(window if slide else 0 for slide in slides)


def _but_every(period: int, layers: int) -> list[bool]:
    """Which layers slide where every `period`-th one does not."""
    return [(layer + 1) % period != 0 for layer in range(layers)]


def _from_gguf(file: gguf_file.GGUFFile) -> dict[str, Any]:
    family = file.family
    heads, width = _field(file, "attention.head_count", most=MOST_HEADS), _field(file, "embedding_length")
    head_width = _field(file, "attention.key_length", default=width // heads, most=MOST_HEAD_WIDTH)
    layers, context = _field(file, "block_count", most=MOST_LAYERS), _field(file, "context_length")
    local = float(file.get("{arch}.rope.freq_base_swa", 10_000.0))
    # The largest model of each generation of Gemma scales scores by its width; the format does not say so.
    scale = (width / heads if layers == family.largest else head_width) ** -0.5
    return dict(
        vocab_size=file.shape("token_embd.weight")[0],
        width=width,
        mlp_width=_field(file, "feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_field(file, "attention.head_count_kv", default=heads, most=MOST_HEADS),
        head_width=head_width,
        context=context,
        norm_epsilon=float(file.field("{arch}.attention.layer_norm_rms_epsilon")),
        rope=gguf_rope(file, head_width, context),
        local_rope=Rope(width=head_width, theta=local) if family.local_rope else None,
        windows=_gguf_windows(file, layers),
        activation=_ACTIVATIONS[family.activation[1]],
        tied="output.weight" not in file.names,
        qkv_bias="blk.0.attn_q.bias" in file.names,
        output_bias="blk.0.attn_output.bias" in file.names,
        mlp_bias="blk.0.ffn_down.bias" in file.names,
        attention_scale=scale if family.scaled else None,
        **_caps(family, file.metadata, f"{file.architecture}."),
        **family.layers,
    )


def _field(file: gguf_file.GGUFFile, name: str, **bounds: Any) -> int:
    name = f"{file.architecture}.{name}"
    if "default" not in bounds:
        file.field(name)
    return size(file.metadata, name, str(file.path), **bounds)


def _gguf_windows(file: gguf_file.GGUFFile, layers: int) -> tuple[int, ...]:
    """Llama and Qwen files may name a window, but no model of theirs in this format was made with one."""
    family = file.family
    if not file.get("{arch}.attention.sliding_window") or family.windows in ("none", "last"):
        return ()
    window = _field(file, "attention.sliding_window")
    slides = [True] * layers if family.windows == "all" else _but_every(family.period, layers)
    return tuple(window if slide else 0 for slide in slides)
