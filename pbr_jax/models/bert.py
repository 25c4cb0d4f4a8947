"""BERT, the text encoder of dense retrieval: MiniLM, BGE, Contriever and their kin.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019), with the released
details: layer normalisation after each residual sum, exact (erf) GELU. Rows may be packed: several
texts stand in one row, each with its own segment number, and attention stays inside a segment.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models.pretrained import Rule, assign, read_json, read_tensors, transpose
from pbr_jax.types import Model, Params, UserError

# Phi(x) = 1/2 + x P(x²) / Q(x²) on |x| <= 5.5, the standard normal distribution, highest power first:
# a weighted least-squares fit of ours with an error below 1e-8 before rounding to float32.
_SATURATED = 5.5
_P = (2.274935974e-08, 6.352121090e-06, 1.688262263e-04, 4.677264020e-03, 3.385270014e-02, 3.989422321e-01)
_Q = (1.197504048e-06, 7.364767952e-05, 1.884447993e-03, 2.864590287e-02, 2.515220642e-01, 1.0)


def _normal_cdf(x: Array) -> Array:
    x = jnp.clip(x, -_SATURATED, _SATURATED)
    square = jnp.square(x)
    above, below = _P[0], _Q[0]
    for p, q in zip(_P[1:], _Q[1:], strict=True):
        above, below = above * square + p, below * square + q
    return 0.5 + x * above / below


@jax.custom_jvp
def gelu(x: Array) -> Array:
    """x Phi(x), Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), to 1e-6 in float32.

    On CPU it takes a third of the time of XLA's erf.
    """
    return x * _normal_cdf(x)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    cdf = _normal_cdf(x)
    density = jnp.exp(-0.5 * jnp.square(x)) * (2 * math.pi) ** -0.5
    return x * cdf, (cdf + x * density) * dx


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": partial(nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(nn.gelu, approximate=True),
    "relu": nn.relu,
}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The sizes of a BERT, under the names of Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(
                f"hidden_act {self.hidden_act!r} is not supported; one of {', '.join(ACTIVATIONS)} is"
            )
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )

    @classmethod
    def from_json(cls, path: Path) -> "BertConfig":
        """The configuration in a `config.json` (or the folder that holds one).

        Raises:
          UserError: the file is no BERT's, lacks a size, or asks for what this port does not do.
        """
        file = path / "config.json" if path.is_dir() else path
        content = read_json(file)
        if not isinstance(content, dict) or content.get("model_type") != "bert":
            found = content.get("model_type") if isinstance(content, dict) else content
            raise UserError(
                f"{file}: model_type is {found!r}; the encoder reads 'bert' (MiniLM, BGE, Contriever)"
            )
        positions = content.get("position_embedding_type", "absolute")
        if positions != "absolute" or content.get("is_decoder", False):
            raise UserError(f"{file}: only encoders with absolute positions are supported")
        values = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        for field in fields(cls):
            if field.default is MISSING or field.name in values:
                _check(file, field.name, field.type, values.get(field.name))
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{file}: {error}") from error


def _check(file: Path, name: str, kind: Any, value: Any) -> None:
    if kind is str:
        fits, wanted = isinstance(value, str), "a name"
    elif kind is int:
        fits, wanted = isinstance(value, int) and value > 0, "a positive whole number"
    else:
        fits, wanted = isinstance(value, int | float) and value > 0, "a positive number"
    if not fits:
        found = "missing" if value is None else repr(value)
        raise UserError(f"{file}: {name} is {found}; {wanted} is wanted")


def bert(config: BertConfig) -> Model:
    """The encoder as a pair of pure functions.

    `apply(params, ids, *, segments, positions=None, types=None) -> states [b t d]`, with every input
    Int [b t]:

    - segments: number of the text that a token belongs to; tokens see only their own segment. A row
      of one text has 1 on its tokens and 0 on its padding; a packed row has 1, 2, ... The states of
      padding are finite and mean nothing.
    - positions: place inside the text, from 0; None: 0, 1, 2, ... along the row (not packed).
    - types: token types ("sentence A or B"); None: all 0.
    """
    module = _Bert(config)

    def init(key: Array) -> Params:
        ids = jnp.zeros((1, 1), jnp.int32)
        return dict(module.init(key, ids, ids, ids, ids)["params"])

    def apply(
        params: Params,
        ids: Int[Any, "b t"],
        *,
        segments: Int[Any, "b t"],
        positions: Int[Any, "b t"] | None = None,
        types: Int[Any, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        if types is None:
            types = jnp.zeros(ids.shape, jnp.int32)
        inputs = [jnp.asarray(x) for x in (ids, segments, positions, types)]
        return cast(Array, module.apply({"params": params}, *inputs))

    return Model(init, apply)


def _dense(width: int, name: str) -> nn.Dense:
    return nn.Dense(width, kernel_init=nn.initializers.normal(0.02), name=name)


class _Bert(nn.Module):
    config: BertConfig

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "b t"],
        segments: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        types: Int[Array, "b t"],
    ) -> Float[Array, "b t d"]:
        states = _Embeddings(self.config, name="embeddings")(ids, positions, types)
        mask = segments[:, :, None] == segments[:, None, :]  # padding sees padding: no empty softmax
        layers = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]  (its annotation says int)
            length=self.config.num_hidden_layers,
        )
        states, _ = layers(self.config, name="layers")(states, mask)
        return states


class _Embeddings(nn.Module):
    config: BertConfig

    @nn.compact
    def __call__(
        self, ids: Int[Array, "b t"], positions: Int[Array, "b t"], types: Int[Array, "b t"]
    ) -> Float[Array, "b t d"]:
        config = self.config
        embed = partial(nn.Embed, features=config.hidden_size, embedding_init=nn.initializers.normal(0.02))
        states = (
            embed(config.vocab_size, name="word")(ids)
            + embed(config.max_position_embeddings, name="position")(positions)
            + embed(config.type_vocab_size, name="type")(types)
        )
        return nn.LayerNorm(epsilon=config.layer_norm_eps, name="norm")(states)


class _Layer(nn.Module):
    config: BertConfig

    @nn.compact
    def __call__(
        self, states: Float[Array, "b t d"], mask: Bool[Array, "b q k"]
    ) -> tuple[Float[Array, "b t d"], None]:
        config = self.config
        norm = partial(nn.LayerNorm, epsilon=config.layer_norm_eps)
        attended = _Attention(config, name="attention")(states, mask)
        states = norm(name="attention_norm")(states + attended)
        hidden = ACTIVATIONS[config.hidden_act](_dense(config.intermediate_size, "up")(states))
        states = norm(name="mlp_norm")(states + _dense(config.hidden_size, "down")(hidden))
        return states, None


class _Attention(nn.Module):
    config: BertConfig

    @nn.compact
    def __call__(self, states: Float[Array, "b t d"], mask: Bool[Array, "b q k"]) -> Float[Array, "b t d"]:
        heads = self.config.num_attention_heads
        b, t, d = states.shape
        # [b t d] -> [b h t e]: h heads of width e. Heads stand before tokens so that both products are
        # plain batched matrix products; on CPU this is 3-5 times as fast as contracting [b t h e].
        query, key, value = (
            _dense(d, name)(states).reshape(b, t, heads, d // heads).swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        logits = jnp.einsum("bhqe,bhke->bhqk", query * (d // heads) ** -0.5, key)
        logits = jnp.where(mask[:, None], logits, jnp.finfo(logits.dtype).min)
        # Softmax with its division after the product, on [q e] instead of [q k]: t / e times less to divide.
        weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
        attended = jnp.einsum("bhqk,bhke->bhqe", weights, value) / weights.sum(-1, keepdims=True)
        attended = attended.swapaxes(1, 2).reshape(b, t, d)
        return _dense(d, "output")(attended)


Pooling = Literal["mean", "cls"]


def pool(
    states: Float[Array, "b t d"],
    segments: Int[Array, "b t"],
    positions: Int[Array, "b t"],
    num_segments: int,
    *,
    pooling: Pooling,
    normalize: bool,
) -> Float[Array, "b s d"]:
    """One vector a text: place s holds segment s + 1 of its row, zeros where the row has no such segment.

    Args:
      states: token states.
      segments: number of the text of each token, 0 for padding.
      positions: place of each token inside its text; the first token is position 0.
      num_segments: how many places each row gets.
      pooling: "mean" over the text's tokens (special tokens included), or "cls", its first token.
      normalize: divide by the Euclidean length (at least 1e-12, as torch's `normalize`).
    """
    numbers = jnp.arange(1, num_segments + 1)
    chosen = segments[:, None, :] == numbers[None, :, None]  # [b s t]
    if pooling == "cls":
        chosen &= (positions == 0)[:, None, :]
    weights = chosen.astype(states.dtype)
    weights /= jnp.maximum(weights.sum(-1, keepdims=True), 1)
    pooled = jnp.einsum("bst,btd->bsd", weights, states)
    return unit_length(pooled) if normalize else pooled


def unit_length(vectors: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Vectors divided by their length; a zero vector stays zero and has a finite gradient."""
    squares = jnp.sum(jnp.square(vectors), -1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


_PREFIX = r"(?:bert\.)?"
_LAYER = _PREFIX + r"encoder\.layer\.(?P<layer>\d+)\."


def _norm_rules(tensor: str, path: str) -> dict[str, Rule]:
    # Checkpoints converted from TensorFlow call scale and bias gamma and beta.
    return {
        tensor + r"\.(?:weight|gamma)": Rule(f"{path}/scale"),
        tensor + r"\.(?:bias|beta)": Rule(f"{path}/bias"),
    }


def _dense_rules(tensor: str, path: str) -> dict[str, Rule]:
    return {
        tensor + r"\.weight": Rule(f"{path}/kernel", transpose),
        tensor + r"\.bias": Rule(f"{path}/bias"),
    }


RULES = {
    _PREFIX + r"embeddings\.(?P<kind>word|position)_embeddings\.weight": Rule("embeddings/{kind}/embedding"),
    _PREFIX + r"embeddings\.token_type_embeddings\.weight": Rule("embeddings/type/embedding"),
    **_norm_rules(_PREFIX + r"embeddings\.LayerNorm", "embeddings/norm"),
    **_dense_rules(_LAYER + r"attention\.self\.(?P<part>query|key|value)", "layers/attention/{part}"),
    **_dense_rules(_LAYER + r"attention\.output\.dense", "layers/attention/output"),
    **_norm_rules(_LAYER + r"attention\.output\.LayerNorm", "layers/attention_norm"),
    **_dense_rules(_LAYER + r"intermediate\.dense", "layers/up"),
    **_dense_rules(_LAYER + r"output\.dense", "layers/down"),
    **_norm_rules(_LAYER + r"output\.LayerNorm", "layers/mlp_norm"),
}
"""Names of `BertModel`, alone or inside a model with a head."""

IGNORED = (
    _PREFIX + r"embeddings\.position_ids",  # a buffer: 0, 1, 2, ...
    _PREFIX + r"pooler\.dense\.(?:weight|bias)",  # trained for next-sentence prediction
    r"cls\.(?:predictions|seq_relationship)\..*",  # pretraining heads
)


def load(folder: Path) -> tuple[Model, Params, BertConfig]:
    """The encoder in a Hugging Face folder: model, parameters (on the default device) and configuration.

    Raises:
      UserError: the folder's configuration or weights are absent, unreadable, or do not fit.
    """
    config = BertConfig.from_json(folder)
    model = bert(config)
    target = jax.eval_shape(model.init, jax.random.key(0))
    params = assign(read_tensors(folder), RULES, target, ignore=IGNORED, source=f"the weights in {folder}")
    return model, jax.device_put(params), config
