"""The sizes of a T5 model, read from Hugging Face's `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.models.causal_lm_config import DecoderLayerConfig
from pbr_jax.models.fields import MOST_HEAD_WIDTH, MOST_HEADS, MOST_LAYERS, check_object, size, sound

# What `feed_forward_proj` says of the MLP. Version 1.1 and FLAN-T5 have a gated one.
_MLPS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu", "gated": False},
    "gated-gelu": {"activation": "gelu_tanh", "gated": True},
}


@dataclass(frozen=True, kw_only=True)
class T5Config(DecoderLayerConfig):
    """The sizes of a model; every field is static."""

    vocab_size: int
    num_layers: int  # of the encoder
    num_decoder_layers: int
    attention_scale: float | None = 1.0
    num_buckets: int = 32  # of distances between tokens, each with a bias per head
    max_distance: int = 128  # distances beyond it share a bucket
    tied: bool = True  # the output matrix is the embedding matrix
    scaled: bool = True  # the decoder's output is multiplied by width ** -0.5
    start_id: int = 0  # the token that every target begins after
    context: int = 512  # tokens of the longest text it was made for; positions are relative, so no bound

    def __post_init__(self) -> None:
        if self.num_buckets < 4 or self.num_buckets % 2 or self.max_distance <= self.num_buckets // 2:
            raise UserError(
                f"relative_attention_num_buckets is {self.num_buckets} and relative_attention_max_distance "
                f"{self.max_distance}; an even number of buckets from 4 and a distance above half of it are "
                "needed, check the model's config"
            )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], source: str = "config.json") -> "T5Config":
        """From a Hugging Face `config.json`; `UserError` names what is missing or not supported."""
        check_object(fields, source)
        _refuse_unsupported(fields, source)
        # Version 1.1 untied the head and dropped the scale; one field said both before another was added.
        tied = fields.get("tie_word_embeddings") is not False
        start = fields.get("decoder_start_token_id")
        with sound(source):
            layers = size(fields, "num_layers", source, most=MOST_LAYERS)
            heads = size(fields, "num_heads", source, most=MOST_HEADS)
            return cls(
                vocab_size=size(fields, "vocab_size", source),
                width=size(fields, "d_model", source),
                head_width=size(fields, "d_kv", source, most=MOST_HEAD_WIDTH),
                mlp_width=size(fields, "d_ff", source),
                num_layers=layers,
                num_decoder_layers=size(
                    fields, "num_decoder_layers", source, default=layers, most=MOST_LAYERS
                ),
                num_heads=heads,
                num_kv_heads=heads,
                num_buckets=int(fields.get("relative_attention_num_buckets", 32)),
                max_distance=int(fields.get("relative_attention_max_distance", 128)),
                norm_epsilon=float(fields.get("layer_norm_epsilon", 1e-6)),
                **_MLPS[fields.get("feed_forward_proj", "relu")],
                tied=tied,
                scaled=bool(fields.get("scale_decoder_outputs", tied)),
                start_id=int(start if start is not None else fields.get("pad_token_id") or 0),
                context=size(fields, "n_positions", source, default=512),
            )


def _refuse_unsupported(fields: Mapping[str, Any], source: str) -> None:
    family, mlp = fields.get("model_type"), fields.get("feed_forward_proj", "relu")
    if family != "t5":
        raise UserError(f"{source}: model_type {family!r} is not supported; a model of type 't5' is needed")
    if mlp not in tuple(_MLPS):  # it may be a list
        raise UserError(
            f"{source}: feed_forward_proj {mlp!r} is not supported; use a model with one of {tuple(_MLPS)}"
        )
    if fields.get("quantization_config"):
        raise UserError(f"{source}: quantised safetensors are not supported; give a folder of float weights")
