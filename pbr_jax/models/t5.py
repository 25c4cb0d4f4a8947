"""T5, an encoder-decoder language model, in JAX.

Supports T5 v1.0 (relu, tied head), v1.1 and FLAN-T5 (gated gelu, separate head) in Hugging Face format. T5
differs from other transformers in three ways. Attention scores are not scaled. Positions enter as a bias for
the distance between two tokens, which all layers of a stack share. Norms do not subtract the mean, and
neither norms nor projections have a bias.

Encoder and decoder are stacks of the layers of `causal_lm_layers`. The decoder reads the keys and values of
earlier tokens (`Past`) and of the encoder's output (`Cross`). It returns those of the new tokens and their
hidden states, from which `logits` computes logits over the vocabulary.
"""

import dataclasses
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Params, UserError
from pbr_jax.models import pretrained, sharding
from pbr_jax.models.causal_lm import logits
from pbr_jax.models.causal_lm_layers import Output
from pbr_jax.models.layers import precision, rngs
from pbr_jax.models.rules import Rule, assign
from pbr_jax.models.t5_config import T5Config
from pbr_jax.models.t5_layers import Cross, CrossProjection, Past, Rows, Stack

__all__ = ["RULES", "SHARDING", "T5", "Cross", "Output", "Past", "load", "logits", "read_config", "t5"]


@dataclasses.dataclass(frozen=True)
class T5:
    """The pure functions of a T5 with weights and activations in `dtype`. `dropout` is the rate at which the
    inputs of adapters (`lora`) are dropped where a key is given.

    Attention scores, norms and softmax are computed in float32 for any `dtype`. `key` is the random key of
    dropout; None: no dropout. Its masks depend on the key and on the `rows`' numbers.

    Parameters: `embedding [v d]`, `encoder/...` and `decoder/...` with `layers/...` stacked on axis 0,
    `cross/{key,value}/kernel` stacked likewise, and `head [v d]` unless tied.

    References: Raffel et al. (T5), https://arxiv.org/abs/1910.10683, 2020; Shazeer (gated MLPs),
    https://arxiv.org/abs/2002.05202, 2020; Chung et al. (FLAN-T5), https://arxiv.org/abs/2210.11416, 2022.
    """

    config: T5Config
    dtype: Any
    dropout: float = 0.0

    def init(self, key: Array) -> Params:
        """Random parameters."""
        keys, shape = jax.random.split(key, 5), (self.config.vocab_size, self.config.width)
        embedding = jax.random.normal(keys[0], shape, self.dtype)
        x, mask = embedding[:1][None], jnp.ones((1, 1), bool)
        params: Params = {"embedding": embedding}
        params["encoder"] = self._module(Stack).init(keys[1], x, mask)["params"]
        (read, values), made = self._module(CrossProjection).init_with_output(keys[2], x)
        params["cross"] = made["params"]
        with precision(self.dtype):
            inputs = x, None, Cross(read, values, mask)
            params["decoder"] = self._module(Stack, decodes=True).init(keys[3], *inputs)["params"]
        if not self.config.tied:
            params["head"] = jax.random.normal(keys[4], shape, self.dtype) * self.config.width**-0.5
        return params

    def encode(
        self,
        params: Params,
        ids: Int[Array, "b s"],
        mask: Bool[Array, "b s"],
        rows: Rows = None,
        key: Array | None = None,
    ) -> Float[Array, "b s d"]:
        """Hidden states of texts. `mask` is True for real tokens. Padding may be on either side; its outputs
        are meaningless."""
        inputs = params["embedding"][ids], mask, None, None, rows
        return self._run(self._module(Stack), params["encoder"], *inputs, key=key)[0]

    def cross(
        self,
        params: Params,
        encoded: Float[Array, "b s d"],
        mask: Bool[Array, "b s"],
        rows: Rows = None,
        key: Array | None = None,
    ) -> Cross:
        """The decoder's keys and values of the encoder's output."""
        module = self._module(CrossProjection)
        keys, values = self._run(module, params["cross"], encoded, rows, key=key)
        return Cross(keys, values, mask)

    def decode(
        self,
        params: Params,
        ids: Int[Array, "r t"],
        cross: Cross,
        past: Past | None = None,
        rows: Rows = None,
        key: Array | None = None,
    ) -> Output:
        """Reads `ids` after the tokens of `past`, which begin with the config's `start_id`. r is a multiple
        of b, and r / b consecutive rows share one encoded text, so beams need no copies of it. Padding may
        only follow the real tokens."""
        module = self._module(Stack, decodes=True)
        inputs = params["embedding"][ids], None, cross, past, rows
        x, (keys, values, _) = self._run(module, params["decoder"], *inputs, key=key)
        # The scale belongs to the tied head; here, `logits` needs no config.
        return Output(x * self.config.width**-0.5 if self.config.scaled else x, keys, values)

    def apply(
        self,
        params: Params,
        ids: Int[Array, "b s"],
        mask: Bool[Array, "b s"],
        decoder_ids: Int[Array, "b t"],
        key: Array | None = None,
        rows: Rows = None,
    ) -> Float[Array, "b t d"]:
        """The complete model, with teacher forcing: decoder hidden states of whole targets."""
        if key is None or rows is None:
            keys, rows = [None] * 3, None
        else:
            keys = list(jax.random.split(key, 3))
        encoded = self.encode(params, ids, mask, rows, keys[0])
        cross = self.cross(params, encoded, mask, rows, keys[1])
        return self.decode(params, decoder_ids, cross, None, rows, keys[2]).hidden

    def _module(self, kind: Any, **options: Any) -> Any:
        return kind(self.config, self.dtype, self.dropout, **options)

    def _run(self, module: Any, params: Params, *inputs: Any, key: Array | None) -> Any:
        with precision(self.dtype):
            return module.apply({"params": params}, *inputs, rngs=rngs(key))


def t5(config: T5Config, dtype: Any = jnp.float32, *, dropout: float = 0.0) -> T5:
    """A T5 of this config; see the class."""
    return T5(config, jnp.dtype(dtype), dropout)


def shift_right(targets: Int[Array, "b t"], where: Bool[Array, "b t"], start: int) -> Int[Array, "b t"]:
    """The decoder's input for these targets: the start token, followed by all targets except the last.
    Masked targets are replaced by the start token, which in T5 is also the padding token."""
    return jnp.pad(jnp.where(where, targets, start)[:, :-1], ((0, 0), (1, 0)), constant_values=start)


_BLOCK = r"(?P<stack>encoder|decoder)\.block\.(?P<layer>\d+)\.layer\."
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}
_CROSS = {
    "q": "decoder/layers/cross_query",
    "k": "cross/key",
    "v": "cross/value",
    "o": "decoder/layers/cross_output",
}
_DENSE = {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"}
RULES: dict[str, Rule] = {
    r"shared\.weight": Rule("embedding"),
    r"lm_head\.weight": Rule("head"),
    r"(?P<stack>encoder|decoder)\.final_layer_norm\.weight": Rule("{stack}/norm/scale"),
    r"(?P<stack>encoder|decoder)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight": Rule(
        "{stack}/distance_bias"
    ),
    _BLOCK + r"0\.layer_norm\.weight": Rule("{stack}/layers/attention_norm/scale"),
    r"decoder\.block\.(?P<layer>\d+)\.layer\.1\.layer_norm\.weight": Rule("decoder/layers/cross_norm/scale"),
    r"encoder\.block\.(?P<layer>\d+)\.layer\.1\.layer_norm\.weight": Rule("encoder/layers/mlp_norm/scale"),
    r"decoder\.block\.(?P<layer>\d+)\.layer\.2\.layer_norm\.weight": Rule("decoder/layers/mlp_norm/scale"),
    **{
        _BLOCK + rf"0\.SelfAttention\.{name}\.weight": Rule(f"{{stack}}/layers/{to}/kernel")
        for name, to in _ATTENTION.items()
    },
    **{_BLOCK + rf"1\.EncDecAttention\.{name}\.weight": Rule(f"{to}/kernel") for name, to in _CROSS.items()},
    **{
        _BLOCK + rf"[12]\.DenseReluDense\.{name}\.weight": Rule(f"{{stack}}/layers/{to}/kernel")
        for name, to in _DENSE.items()
    },
}
"""Rules that map Hugging Face names of T5 to parameters."""

SHARDING: dict[str, tuple[str | None, ...]] = {
    r"embedding|head": ("model", None),
    r".*/distance_bias": (None, "model"),
    r".*/(query|key|value|cross_query|gate|up)/kernel": (None, "model", None),
    r".*/(output|cross_output|down)/kernel": (None, None, "model"),
    r".*/scale": (),
}
"""Maps the path of a parameter to a mesh axis for each of its axes: heads, MLP and vocabulary are sharded."""


def modules(config: T5Config) -> dict[str, str]:
    """Maps the path of a linear map to its name in Hugging Face's files."""
    names = {}
    for stack, mlp in (("encoder", 1), ("decoder", 2)):
        block = stack + ".block.{layer}.layer."
        for name, to in _ATTENTION.items():
            names[f"{stack}/layers/{to}"] = f"{block}0.SelfAttention.{name}"
        for name, to in _DENSE.items():
            if config.gated == name.startswith("wi_") or name == "wo":
                names[f"{stack}/layers/{to}"] = f"{block}{mlp}.DenseReluDense.{name}"
    for name, to in _CROSS.items():
        names[to] = "decoder.block.{layer}.layer.1.EncDecAttention." + name
    return names


_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_IGNORED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # never used


def load(
    path: Path, dtype: Any = jnp.float32, mesh: Mesh | None = None, *, fully: bool = False
) -> tuple[T5, Params, T5Config]:
    """Loads a model from a Hugging Face folder, with weights in `dtype`, sharded as in `causal_lm.load`.
    Raises UserError for an architecture, tensor or file that is not supported."""
    config = read_config(path)
    tensors = pretrained.read_tensors(path)
    _drop_copies(tensors, config, str(path))
    config = dataclasses.replace(config, tied=config.tied and "lm_head.weight" not in tensors)
    model = t5(config, dtype)
    target = jax.eval_shape(model.init, jax.random.key(0))
    put = sharding.placer(SHARDING, mesh, fully=fully)
    params = assign(tensors, RULES, target, ignore=_IGNORED, source=str(path), put=put)
    return model, params, config


def _drop_copies(tensors: MutableMapping[str, np.ndarray], config: T5Config, source: str) -> None:
    """Leaves the embedding once, as `shared`. A tied head that differs from it is a head of its own."""
    for name in _COPIES:
        if name in tensors and not np.array_equal(
            tensors.setdefault("shared.weight", tensors[name]), tensors[name]
        ):
            raise UserError(
                f"{source}: {name} differs from shared.weight; T5 has one embedding, save it again"
            )
        tensors.pop(name, None)
    both = "lm_head.weight" in tensors and "shared.weight" in tensors
    if config.tied and both and np.array_equal(tensors["lm_head.weight"], tensors["shared.weight"]):
        del tensors["lm_head.weight"]


def read_config(path: Path) -> T5Config:
    """Reads the sizes of a model without its weights."""
    source = path / "config.json"
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; T5 is read from a Hugging Face folder with {source.name}")
    return T5Config.from_json(pretrained.read_json(source), str(source))
