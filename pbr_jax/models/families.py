"""The families of decoder-only language models, a row each: what config.json and GGUF files leave unsaid.

A family that differs from Llama by such values alone needs a row here and nothing else.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

_BLOCK = {  # tensors of a layer: names in a GGUF file, and Hugging Face's
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Family(NamedTuple):
    """One family.

    `absent`: fields that its config.json may leave out, with the values they then have. `layers`: further
    fields of `CausalLMConfig`. `windows`: which layers have a window; "some": as `layer_types` says, else all
    but every `period`-th one; "last": where `use_sliding_window` says so, as `layer_types` says, else from
    `max_window_layers` on.
    """

    gguf: str  # `general.architecture`
    absent: Mapping[str, Any] = {}
    layers: Mapping[str, Any] = {}
    activation: tuple[str, str] = ("hidden_act", "silu")  # the field, and the value it has where absent
    qkv_bias: bool | None = None  # None: `attention_bias` says so, of the output projection too
    windows: Literal["none", "all", "some", "last"] = "none"
    period: int = 6
    local_rope: bool = False  # layers with a window have their own rotary positions
    scaled: bool = False  # `query_pre_attn_scalar` scales scores, and caps may be set
    largest: int = 0  # layers of the one model whose scores a GGUF file scales by its width
    tensors: Mapping[str, str] = {}  # names of a layer's tensors, where they differ from Llama's
    interleaved: bool = False  # a GGUF file's rows of query and key are pairs (2i, 2i + 1)

    @property
    def blocks(self) -> Mapping[str, str]:
        """Names of a layer's tensors in a GGUF file, and Hugging Face's."""
        return {**_BLOCK, **self.tensors}


_GEMMA: dict[str, Any] = dict(
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    windows="some",
    scaled=True,
    tensors={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)
_GEMMA_LAYERS = dict(norm_offset=1.0, post_norms=True, scale_embedding=True)
_GEMMA_ABSENT = {
    "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "tie_word_embeddings": True,
}  # fmt: skip

FAMILIES = {
    "llama": Family(gguf="llama", interleaved=True),
    "mistral": Family(gguf="llama", absent={"sliding_window": 4096}, windows="all", interleaved=True),
    "qwen2": Family(gguf="qwen2", qkv_bias=True, windows="last"),
    "qwen3": Family(gguf="qwen3", absent={"head_dim": 128}, layers={"qk_norm": True}, windows="last"),
    "phi3": Family(
        gguf="phi3",
        absent={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        layers={"fused": True},
        windows="all",
        tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "gemma2": Family(
        gguf="gemma2",
        absent=_GEMMA_ABSENT
        | {
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "max_position_embeddings": 8192,
        },
        layers=_GEMMA_LAYERS,
        period=2,
        largest=46,
        **_GEMMA,
    ),
    "gemma3_text": Family(
        gguf="gemma3",
        absent=_GEMMA_ABSENT
        | {
            "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
            "max_position_embeddings": 131_072, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        },
        layers=_GEMMA_LAYERS | {"qk_norm": True},
        local_rope=True,
        largest=62,
        **_GEMMA,
    ),
}  # fmt: skip
"""By the `model_type` of config.json."""

ARCHITECTURES = {family.gguf: family for family in reversed(FAMILIES.values())}
"""By the `general.architecture` of a GGUF file. Mistral's files call themselves llama."""
