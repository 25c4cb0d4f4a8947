"""A decoder-only language model of the Llama family, in JAX.

Covers Llama 2 and 3, SmolLM, TinyLlama, Mistral and Qwen2 in Hugging Face format, and GGUF files of the
`llama` architecture: rotary positions, grouped-query attention, RMS norms, a gated MLP, and tied or
untied embeddings. Layers are stacked and scanned, so compile time does not grow with depth.

The model never keeps a cache of its own: `apply` takes the keys and values of earlier tokens (`Past`) and
returns those of the tokens it was given. It returns hidden states, not logits; `logits` multiplies out
the vocabulary where it is wanted, for one position per row when generating.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models import gguf_file, pretrained
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.pretrained import Rule
from pbr_jax.types import Model, Params

QUERY_BLOCK = 512  # tokens that attend at once: scores are [.., QUERY_BLOCK, t], never [.., t, t]


class Past(NamedTuple):
    """Keys and values of earlier tokens, in `s` slots; a slot whose position is negative is never attended to."""

    keys: Float[Array, "l b k s h"]
    values: Float[Array, "l b k s h"]
    positions: Int[Array, "b s"]


class Output(NamedTuple):
    """Normed hidden states of the given tokens, and their keys (rotated) and values in every layer."""

    hidden: Float[Array, "b t d"]
    keys: Float[Array, "l b k t h"]
    values: Float[Array, "l b k t h"]


def causal_lm(config: CausalLMConfig, dtype: Any = jnp.float32) -> Model:
    """A Llama-family model, `Model(init, apply)`, with weights and activations in `dtype`.

    `apply(params, ids, positions, past=None, *, tokens=None) -> Output`:

    - `ids: Int["b t"]`; `positions: Int["b t"]`, the place of each token in its own text, from 0, and
      negative for padding, which may stand anywhere; outputs there mean nothing.
    - A token attends to the tokens of its row, in `past` and given, whose position is not after its own.
    - `tokens` (static): at least as many as there are real tokens in the batch. All but attention is then
      computed for so many tokens, not for b t: rows of unlike length cost what they hold.
    - Attention scores, norms and softmax are computed in float32 whatever `dtype` is.

    Parameters: `embedding [v d]`, `layers/...` stacked on axis 0, `norm [d]`, and `head [v d]` unless tied.

    References: Touvron et al., LLaMA, https://arxiv.org/abs/2302.13971, 2023; Su et al., RoFormer,
    https://arxiv.org/abs/2104.09864, 2021; Ainslie et al., GQA, https://arxiv.org/abs/2305.13245, 2023.
    """
    module = _Decoder(config, jnp.dtype(dtype))

    def init(key: Array) -> Params:
        ids = jnp.zeros((1, 1), jnp.int32)
        return dict(module.init(key, ids, ids, None, None)["params"])

    def apply(
        params: Params,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        past: Past | None = None,
        *,
        tokens: int | None = None,
    ) -> Output:
        return module.apply({"params": params}, ids, positions, past, tokens)  # pyright: ignore[reportReturnType]

    return Model(init, apply)


def logits(params: Params, hidden: Float[Array, "*batch d"]) -> Float[Array, "*batch v"]:
    """Next-token logits, float32. Give it only the positions that are needed: v is tens of thousands."""
    head = params["head"] if "head" in params else params["embedding"]
    return jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)


class _Decoder(nn.Module):
    config: CausalLMConfig
    dtype: Any

    @nn.compact
    def __call__(
        self, ids: Int[Array, "b t"], positions: Int[Array, "b t"], past: Past | None, tokens: int | None
    ) -> Output:
        config = self.config
        shape = (config.vocab_size, config.width)
        embedding = self.param("embedding", nn.initializers.normal(0.02), shape, self.dtype)
        if not config.tied:
            self.param("head", nn.initializers.normal(0.02), shape, self.dtype)
        if past is None:
            past = _no_past(config, ids.shape[0], self.dtype)
        layout = _layout(positions, tokens)
        rotation = _rotation(config, layout.pack(positions))
        layers = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, nn.broadcast, nn.broadcast, nn.broadcast),  # pyright: ignore[reportArgumentType]
            length=config.num_layers,
        )(config, self.dtype, name="layers")
        x = embedding[layout.pack(ids)]
        x, (keys, values) = layers(x, past.keys, past.values, past.positions, layout, rotation)
        x = _RMSNorm(config.norm_epsilon, self.dtype, name="norm")(x)
        return Output(layout.spread(x), keys, values)


def _no_past(config: CausalLMConfig, batch: int, dtype: Any) -> Past:
    empty = jnp.zeros((config.num_layers, batch, config.num_kv_heads, 0, config.head_width), dtype)
    return Past(empty, empty, jnp.zeros((batch, 0), jnp.int32))


class _Layout(NamedTuple):
    """Where tokens lie: in rows, [b t], for attention, and one after another, [n], for everything else."""

    positions: Int[Array, "b t"]
    rows: Int[Array, "n"] | None  # of each packed token: its place in the b t; None: all of them in order
    packed: Int[Array, "b t"] | None  # of each place in the rows: its packed token

    def pack(self, x: Array) -> Array:
        """[b t ...] -> [n ...]."""
        flat = x.reshape(-1, *x.shape[2:])
        return flat if self.rows is None else jnp.take(flat, self.rows, axis=0, mode="clip")

    def spread(self, x: Array) -> Array:
        """[n ...] -> [b t ...]; places of padding get some token's values."""
        if self.packed is None:
            return x.reshape(*self.positions.shape, *x.shape[1:])
        return jnp.take(x, self.packed, axis=0, mode="clip")


def _layout(positions: Int[Array, "b t"], tokens: int | None) -> _Layout:
    if tokens is None or tokens >= positions.size:
        return _Layout(positions, None, None)
    real = positions.reshape(-1) >= 0
    (rows,) = jnp.nonzero(real, size=tokens, fill_value=0)
    return _Layout(positions, rows, (jnp.cumsum(real) - 1).reshape(positions.shape))


class _Layer(nn.Module):
    """Attention and MLP, each after a norm and added to the stream. One step of the scan."""

    config: CausalLMConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "n d"],
        past_keys: Float[Array, "b k s h"],
        past_values: Float[Array, "b k s h"],
        past_positions: Int[Array, "b s"],
        layout: _Layout,
        rotation: tuple[Float[Array, "n 1 h"], Float[Array, "n 1 h"]],
    ) -> tuple[Float[Array, "n d"], tuple[Float[Array, "b k t h"], Float[Array, "b k t h"]]]:
        c = self.config
        y = _RMSNorm(c.norm_epsilon, self.dtype, name="attention_norm")(x)
        query = _rotate(self._heads("query", c.num_heads, y), rotation)
        key = _rotate(self._heads("key", c.num_kv_heads, y), rotation)
        value = self._heads("value", c.num_kv_heads, y)
        # Heads before tokens: the layout that attention multiplies and that a cache is kept in.
        key, value = layout.spread(key).swapaxes(1, 2), layout.spread(value).swapaxes(1, 2)
        past = past_keys, past_values, past_positions
        attended = _attend(layout.spread(query), key, value, layout.positions, *past)
        x = x + self._project("output", c.width, c.output_bias, layout.pack(attended))
        y = _RMSNorm(c.norm_epsilon, self.dtype, name="mlp_norm")(x)
        gate = self._project("gate", c.mlp_width, c.mlp_bias, y)
        up = self._project("up", c.mlp_width, c.mlp_bias, y)
        x = x + self._project("down", c.width, c.mlp_bias, nn.silu(gate) * up)
        return x, (key, value)

    def _heads(self, name: str, heads: int, x: Float[Array, "n d"]) -> Float[Array, "n a h"]:
        c = self.config
        return self._project(name, heads * c.head_width, c.qkv_bias, x).reshape(-1, heads, c.head_width)

    def _project(self, name: str, width: int, bias: bool, x: Array) -> Array:
        return nn.Dense(width, use_bias=bias, dtype=self.dtype, param_dtype=self.dtype, name=name)(x)


class _RMSNorm(nn.Module):
    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return scale[None, :] * wide.astype(self.dtype)


def _rotation(
    config: CausalLMConfig, positions: Int[Array, "n"]
) -> tuple[Float[Array, "n 1 h"], Float[Array, "n 1 h"]]:
    """Cosine and sine of position times frequency, for both halves of a head."""
    half = config.head_width // 2
    frequency = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if config.rope_divisors:
        frequency = frequency / jnp.array(config.rope_divisors, jnp.float32)
    angle = positions[:, None].astype(jnp.float32) * frequency[None, :]
    angle = jnp.concatenate([angle, angle], axis=-1)[:, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(
    x: Float[Array, "n a h"], rotation: tuple[Float[Array, "n 1 h"], Float[Array, "n 1 h"]]
) -> Float[Array, "n a h"]:
    """Turns the pairs (i, i + h/2) of each head: the half-split layout of Hugging Face weights."""
    cosine, sine = rotation
    first, second = jnp.split(x, 2, axis=-1)
    return (x * cosine + jnp.concatenate([-second, first], axis=-1) * sine).astype(x.dtype)


def _attend(
    query: Float[Array, "b t a h"],
    key: Float[Array, "b k t h"],
    value: Float[Array, "b k t h"],
    positions: Int[Array, "b t"],
    past_keys: Float[Array, "b k s h"],
    past_values: Float[Array, "b k s h"],
    past_positions: Int[Array, "b s"],
) -> Float[Array, "b t d"]:
    """Softmax attention of every token over the past and the tokens of its row, by blocks of queries.

    The new tokens are not written into the past's slots first: the past is only read, so the layer
    scan moves none of it.
    """
    b, t, a, h = query.shape
    k, s = key.shape[1], past_keys.shape[2]
    places = jnp.concatenate([past_positions, positions], axis=1)[:, None, :]  # of keys
    # Scores come out as [b k g r s] without moving them: the largest arrays of the layer.
    query = query.reshape(b, t, k, a // k, h).transpose(0, 2, 3, 1, 4) / math.sqrt(h)

    def block(rows: tuple[Array, Array]) -> Array:
        some, own = rows  # [b k g r h], [b r]
        visible = (places >= 0) & (places <= own[:, :, None])
        scores = jnp.concatenate([_scores(some, past_keys), _scores(some, key)], axis=-1)
        # A finite fill: a row that sees nothing (padding) averages everything instead of making NaN.
        scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        mixed = _mix(weights[..., :s], past_values) + _mix(weights[..., s:], value)
        return mixed.astype(value.dtype)

    if t <= QUERY_BLOCK:
        mixed = block((query, positions))
    else:
        padding = -t % QUERY_BLOCK
        query = jnp.pad(query, ((0, 0), (0, 0), (0, 0), (0, padding), (0, 0)))
        own = jnp.pad(positions, ((0, 0), (0, padding)), constant_values=-1)
        blocks = jnp.moveaxis(query.reshape(*query.shape[:3], -1, QUERY_BLOCK, h), 3, 0)
        mixed = jax.lax.map(block, (blocks, own.reshape(b, -1, QUERY_BLOCK).swapaxes(0, 1)))
        mixed = jnp.moveaxis(mixed, 0, 3).reshape(*query.shape)[:, :, :, :t]
    return mixed.transpose(0, 3, 1, 2, 4).reshape(b, t, a * h)


def _scores(query: Float[Array, "b k g r h"], keys: Float[Array, "b k s h"]) -> Float[Array, "b k g r s"]:
    return jnp.einsum("bkgrh,bksh->bkgrs", query, keys, preferred_element_type=jnp.float32)


def _mix(weights: Float[Array, "b k g r s"], values: Float[Array, "b k s h"]) -> Float[Array, "b k g r h"]:
    return jnp.einsum("bkgrs,bksh->bkgrh", weights, values, preferred_element_type=jnp.float32)


_LAYER = r"model\.layers\.(?P<layer>\d+)\."
_PROJECTIONS = {
    r"self_attn\.q_proj": "query",
    r"self_attn\.k_proj": "key",
    r"self_attn\.v_proj": "value",
    r"self_attn\.o_proj": "output",
    r"mlp\.gate_proj": "gate",
    r"mlp\.up_proj": "up",
    r"mlp\.down_proj": "down",
}
RULES: dict[str, Rule] = {
    r"model\.embed_tokens\.weight": Rule("embedding"),
    r"model\.norm\.weight": Rule("norm/scale"),
    r"lm_head\.weight": Rule("head"),
    _LAYER + r"input_layernorm\.weight": Rule("layers/attention_norm/scale"),
    _LAYER + r"post_attention_layernorm\.weight": Rule("layers/mlp_norm/scale"),
    **{
        _LAYER + name + r"\.weight": Rule(f"layers/{to}/kernel", pretrained.transpose)
        for name, to in _PROJECTIONS.items()
    },
    **{_LAYER + name + r"\.bias": Rule(f"layers/{to}/bias") for name, to in _PROJECTIONS.items()},
}
"""Hugging Face names of the Llama family, and where they go."""


def load(path: Path, dtype: Any = jnp.float32) -> tuple[Model, Params, CausalLMConfig]:
    """The model of a Hugging Face folder or GGUF file, its weights in `dtype` on the default device.

    Raises:
      UserError: an architecture, tensor type or file that is not supported, named.
    """
    config = read_config(path)
    model = causal_lm(config, dtype)
    if path.is_file():
        tensors, ignore = gguf_file.read(path).tensors(), []
    else:
        tensors, ignore = pretrained.read_tensors(path), [r".*\.rotary_emb\.inv_freq"]
        if config.tied:
            tensors.pop("lm_head.weight", None)  # some writers keep the tied copy
    target = jax.eval_shape(model.init, jax.random.key(0))
    params = pretrained.assign(tensors, RULES, target, ignore=ignore, source=str(path))
    return model, jax.device_put(params), config


def read_config(path: Path) -> CausalLMConfig:
    """The sizes of a model, without reading its weights."""
    if path.is_file():
        return CausalLMConfig.from_gguf(gguf_file.read(path))
    source = path / "config.json"
    return CausalLMConfig.from_json(pretrained.read_json(source), str(source))
