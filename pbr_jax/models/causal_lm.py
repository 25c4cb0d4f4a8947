"""A decoder-only language model in JAX: Llama and similar families.

Supports Llama 2 and 3 (SmolLM, TinyLlama), Mistral, Qwen2 and Qwen3, Phi-3 and Phi-4-mini, Gemma 2 and 3, in
Hugging Face format and as GGUF: rotary positions, grouped-query attention, RMS norms, a gated MLP, and the
features in `CausalLMConfig`. Layers are stacked and scanned, so compile time does not grow with depth.

`apply` reads the keys and values of earlier tokens (`Past`) and returns those of the new tokens. It returns
hidden states, from which `logits` computes logits over the vocabulary at the positions that need them.
"""

import dataclasses
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params
from pbr_jax.models import gguf_file, pretrained, sharding
from pbr_jax.models.adapter_file import Modules, Part
from pbr_jax.models.attention import capped
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.causal_lm_layers import Decoder, Output, Past, times
from pbr_jax.models.layers import precision, rngs
from pbr_jax.models.rules import Rule, assign

# Flax makes classes while it traces, and not in two threads at once, as `llm.engine.workers` would have it.
# Compiled programs do not pass here.
_TRACED = threading.RLock()


def causal_lm(
    config: CausalLMConfig, dtype: Any = jnp.float32, *, dropout: float = 0.0, remat: bool = False
) -> Model:
    """Builds a decoder-only model, `Model(init, apply)`, with weights and activations in `dtype`.

    `dropout` is the dropout rate of the inputs of adapters (`lora`). `remat` recomputes layers in the
    backward pass, so that training stores the activations of one layer instead of all.

    `apply(params, ids, positions, past=None, *, tokens=None, long=None, key=None, rows=None, watched=None) ->
    Output`:

    - `ids: Int["b t"]`; `positions: Int["b t"]`: the position of each token in its text, from 0, increasing
      along the row. Padding has negative positions and may be anywhere; its outputs are meaningless.
    - A token attends to all tokens of its row, new or in `past`, whose position is not after its own. `past`
      may be a tuple of parts, for example one part that changes in a loop and one that all rows share.
    - `tokens` (static): an upper bound on the number of real tokens in the batch. All computation except
      attention is then done for this number of tokens instead of b t, which saves time if rows differ in
      length.
    - Attention scores, norms and softmax are computed in float32 for any `dtype`.
    - LongRoPE (Phi): `long` says, for all rows or for each, whether the long factors are used. None: a row
      uses them if its largest given position is beyond the original context. Keys in `past` keep the factors
      that they were computed with, so a row that grows beyond that length should be recomputed.
    - In float32, products have full float32 precision on every platform.
    - `watched: Float["b t"]`: the weight of each token in `Output.mass`, the attention that each key receives
      from these tokens.
    - `key` is the random key of dropout; None: no dropout. `rows: Int["b"]` are row numbers. Dropout masks
      depend on them and on the key, but not on the position of a row in the batch.

    Parameters: `embedding [v d]`, `layers/...` stacked on axis 0, `norm [d]`, and `head [v d]` unless tied.

    References, on https://arxiv.org: LLaMA 2302.13971; GQA 2305.13245; Mistral 7B (windows) 2310.06825;
    Gemma 2 2408.00118; Gemma 3 2503.19786; Qwen3 (norms of queries and keys) 2505.09388; Phi-4-mini
    2503.01743.
    """
    module = Decoder(config, jnp.dtype(dtype), dropout, remat)

    def init(key: Array) -> Params:
        ids = jnp.zeros((1, 1), jnp.int32)
        return dict(module.init(key, ids, ids, None, None)["params"])

    def apply(
        params: Params,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        past: Past | tuple[Past, ...] | None = None,
        *,
        tokens: int | None = None,
        long: Bool[Array, "*b"] | None = None,
        key: Array | None = None,
        rows: Int[Array, "b"] | None = None,
        watched: Float[Array, "b t"] | None = None,
    ) -> Output:
        with _TRACED, precision(dtype):
            return module.apply(  # pyright: ignore[reportReturnType]
                {"params": params}, ids, positions, past, tokens, long, rows, watched, rngs=rngs(key)
            )

    return Model(init, apply)


def logits(
    params: Params, hidden: Float[Array, "*batch d"], cap: float | None = None
) -> Float[Array, "*batch v"]:
    """Next-token logits, float32. Pass only the positions that are needed, since the vocabulary is large.
    `cap` is the config's `logit_cap`: logits become cap * tanh(logit / cap)."""
    head = params["head"] if "head" in params else params["embedding"]
    with precision(head.dtype):
        products = times(hidden.reshape(-1, hidden.shape[-1]), head, jnp.float32)
    return capped(products.reshape(*hidden.shape[:-1], len(head)), cap)


_ROOT = (
    r"(?:language_model\.)?model\.(?:language_model\.)?"  # the longer ones: inside a model that sees images
)
_LAYER = _ROOT + r"layers\.(?P<layer>\d+)\."
_PROJECTIONS = {
    r"self_attn\.q_proj": "query",
    r"self_attn\.k_proj": "key",
    r"self_attn\.v_proj": "value",
    r"self_attn\.o_proj": "output",
    r"mlp\.gate_proj": "gate",
    r"mlp\.up_proj": "up",
    r"mlp\.down_proj": "down",
}
MODULES = {
    f"layers/{to}": "model.layers.{layer}." + name.replace("\\.", ".") for name, to in _PROJECTIONS.items()
}
"""Maps the path of a linear map to its name in Hugging Face's files, where none is fused."""

_HEAD = r"(?:language_model\.)?lm_head\.weight"
_EMBEDDING = _ROOT + r"embed_tokens\.weight"
RULES: dict[str, Rule] = {
    _EMBEDDING: Rule("embedding"),
    _ROOT + r"norm\.weight": Rule("norm/scale"),
    _HEAD: Rule("head"),
    _LAYER + r"input_layernorm\.weight": Rule("layers/attention_norm/scale"),
    _LAYER + r"post_attention_layernorm\.weight": Rule("layers/mlp_norm/scale"),
    _LAYER + r"self_attn\.q_norm\.weight": Rule("layers/query_norm/scale"),
    _LAYER + r"self_attn\.k_norm\.weight": Rule("layers/key_norm/scale"),
    **{_LAYER + name + r"\.weight": Rule(f"layers/{to}/kernel") for name, to in _PROJECTIONS.items()},
    **{_LAYER + name + r"\.bias": Rule(f"layers/{to}/bias") for name, to in _PROJECTIONS.items()},
}
"""Rules that map Hugging Face names to parameters."""

_POST_NORM_RULES = {  # with norms after attention and MLP, one name means another norm
    _LAYER + r"post_attention_layernorm\.weight": Rule("layers/attention_post_norm/scale"),
    _LAYER + r"pre_feedforward_layernorm\.weight": Rule("layers/mlp_norm/scale"),
    _LAYER + r"post_feedforward_layernorm\.weight": Rule("layers/mlp_post_norm/scale"),
}
_IGNORED = [
    r".*\.rotary_emb\.inv_freq",  # a buffer
    r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..*",  # images are not read
]

SHARDING: dict[str, tuple[str | None, ...]] = {
    r"embedding|head": ("model", None),
    r"layers/(query|key|value|gate|up)/kernel": (None, "model", None),
    r"layers/(query|key|value|gate|up)/bias": (None, "model"),
    r"layers/(output|down)/kernel": (None, None, "model"),
}
"""Maps the path of a parameter to a mesh axis for each of its axes: tensor parallelism.

Heads, MLP and vocabulary are sharded, and norms are replicated. Each pair of projections needs one sum over
devices: Shoeybi et al., Megatron-LM, https://arxiv.org/abs/1909.08053, 2019.
"""


def load(
    path: Path, dtype: Any = jnp.float32, mesh: Mesh | None = None, *, fully: bool = False
) -> tuple[Model, Params, CausalLMConfig]:
    """Loads a model from a Hugging Face folder or GGUF file, with weights in `dtype`.

    Weights are sharded over the devices of a mesh by `sharding_rules`; `fully` is an argument of
    `models.sharding.spec`. Mesh None: weights are put on the default device. Parameters are transferred one
    by one, so the host and each device hold at most their share and one parameter. Raises UserError for an
    architecture, tensor type or file that is not supported.
    """
    tensors = gguf_file.read(path).tensors() if path.is_file() else pretrained.read_tensors(path)
    config = _tied(read_config(path), tensors)
    model = causal_lm(config, dtype)
    _divide_fused(tensors, config)
    rules, ignore = (RULES | _POST_NORM_RULES if config.post_norms else RULES), _IGNORED
    if config.tied:  # some writers keep the tied copy
        rules, ignore = {name: rule for name, rule in rules.items() if name != _HEAD}, [*ignore, _HEAD]
    target = jax.eval_shape(model.init, jax.random.key(0))
    put = sharding.placer({} if mesh is None else sharding_rules(config, mesh), mesh, fully=fully)
    params = assign(tensors, rules, target, ignore=ignore, source=str(path), put=put)
    return model, params, config


def sharding_rules(config: CausalLMConfig, mesh: Mesh) -> sharding.Rules:
    """`SHARDING` for a mesh. Keys and values are replicated if their heads cannot be divided evenly."""
    if config.num_kv_heads % mesh.shape.get("model", 1):  # half a head would be sent from device to device
        return {r"layers/(key|value)/.*": (), **SHARDING}
    return SHARDING


def modules(config: CausalLMConfig) -> Modules:
    """`MODULES` of a model; Phi's query, key and value are parts of one map, and so are gate and up."""
    found: dict[str, str | Part] = dict(MODULES)
    for whole, parts in _fused(config).items() if config.fused else ():
        start, rows = 0, sum(parts.values())
        for part, outputs in parts.items():
            [path] = [path for path, name in MODULES.items() if name.endswith(part)]
            found[path] = Part(f"model.layers.{{layer}}.{whole}", start, rows)
            start += outputs
    return found


def _fused(config: CausalLMConfig) -> dict[str, dict[str, int]]:
    """Maps that Phi's files have as one, with their rows."""
    queries, keys = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
    return {
        "self_attn.qkv_proj": {
            "self_attn.q_proj": queries,
            "self_attn.k_proj": keys,
            "self_attn.v_proj": keys,
        },
        "mlp.gate_up_proj": {"mlp.gate_proj": config.mlp_width, "mlp.up_proj": config.mlp_width},
    }


def _divide_fused(tensors: pretrained.Tensors, config: CausalLMConfig) -> None:
    for name in list(tensors):
        for part, parts in _fused(config).items():
            if part in name:
                tensors.divide(name, {name.replace(part, to): rows for to, rows in parts.items()})


def _tied(config: CausalLMConfig, tensors: Mapping[str, np.ndarray]) -> CausalLMConfig:
    """Without the tie where the file's head differs from the embedding, as transformers 5 reads it."""
    names = [[name for name in tensors if re.fullmatch(part, name)] for part in (_HEAD, _EMBEDDING)]
    if config.tied and all(names):
        head, embedding = (tensors[of_part[0]] for of_part in names)
        return dataclasses.replace(config, tied=np.array_equal(head, embedding))
    return config


def read_config(path: Path) -> CausalLMConfig:
    """Reads the sizes of a model without its weights."""
    if path.is_file():
        return CausalLMConfig.from_gguf(gguf_file.read(path))
    source = path / "config.json"
    return CausalLMConfig.from_json(pretrained.read_json(source), str(source))
