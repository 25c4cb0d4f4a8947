"""BERT, the text encoder of dense retrieval: MiniLM, BGE, Contriever and similar models, RoBERTa and XLM-R.

Devlin et al. (BERT, 2019): layer normalisation after each residual sum, exact (erf) GELU. Rows may be packed:
a row contains several texts with different segment numbers, and tokens attend within their segment only.

RoBERTa (Liu et al., 2019) and XLM-R (Conneau et al., 2020) have the same architecture. The first
`padding_idx + 1` rows of their position tables are not used.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.models import layers
from pbr_jax.models.fields import MOST, MOST_LAYERS, read_object
from pbr_jax.models.pretrained import read_tensors
from pbr_jax.models.rules import Rule, assign, transpose

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
    """GELU, x Phi(x), accurate to 1e-6 in float32. bfloat16 inputs are computed in float32 and rounded. On
    CPU it takes a third of the time of XLA's erf.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * _normal_cdf(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    cdf = _normal_cdf(wide)
    density = jnp.exp(-0.5 * jnp.square(wide)) * (2 * math.pi) ** -0.5
    return (wide * cdf).astype(x.dtype), (cdf + wide * density).astype(x.dtype) * dx


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": partial(nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(nn.gelu, approximate=True),
    "relu": nn.relu,
}


class Family(NamedTuple):
    """A family of encoders: its class in transformers, and whether positions begin behind the number of the
    padding token."""

    torch: str
    behind_padding: bool = False


FAMILIES = {
    "bert": Family("BertModel"),
    "roberta": Family("RobertaModel", behind_padding=True),
    "xlm-roberta": Family("XLMRobertaModel", behind_padding=True),
}
"""By the `model_type` of config.json."""


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The sizes of a BERT, named as in Hugging Face's `config.json`.

    `max_position_embeddings` is the maximum length of a text in tokens. `position_offset` is the number of
    unused rows at the start of a checkpoint's position table (RoBERTa: 2 of 514).
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    position_offset: int = 0

    def __post_init__(self) -> None:
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(
                f"hidden_act {self.hidden_act!r} is not supported; one of {', '.join(ACTIVATIONS)} is"
            )
        if self.hidden_size % self.num_attention_heads:
            heads = self.num_attention_heads
            raise UserError(f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {heads}")

    @classmethod
    def from_json(cls, path: Path) -> "BertConfig":
        """Reads a `config.json`, or that of a folder. Raises UserError if it is not that of a BERT, lacks a
        size or requires an unsupported feature."""
        file = path / "config.json" if path.is_dir() else path
        content = read_object(file)
        if (name := content.get("model_type")) not in tuple(FAMILIES):
            raise UserError(
                f"{file}: model_type is {name!r:.40}; the encoder reads {', '.join(FAMILIES)} (MiniLM, BGE "
                "and Contriever are bert)"
            )
        if (file.parent / "adapter_config.json").is_file():
            raise UserError(
                f"{file.parent}: found adapter_config.json, and adapters of encoders are not read; merge it "
                "into the weights (PEFT's merge_and_unload) and save them"
            )
        if content.get("position_embedding_type", "absolute") != "absolute" or content.get("is_decoder"):
            raise UserError(f"{file}: only encoders with absolute positions are supported")
        values = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        for field in fields(cls):
            if field.default is MISSING or field.name in values:
                _check(file, field.name, field.type, values.get(field.name))
        if FAMILIES[name].behind_padding:
            padding = content.get("pad_token_id", 1)
            if not isinstance(padding, int) or not 0 <= padding < values["max_position_embeddings"] - 1:
                raise UserError(f"{file}: pad_token_id {padding!r} leaves no position for a text")
            values["position_offset"] = padding + 1
            values["max_position_embeddings"] -= padding + 1
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{file}: {error}") from error


def _check(file: Path, name: str, kind: Any, value: Any) -> None:
    if kind is str:
        fits, wanted = isinstance(value, str), "a name"
    elif kind is int:
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        fits, wanted = type(value) is int and 0 < value <= most, f"a positive whole number up to {most}"
    elif name.endswith("dropout_prob"):
        fits, wanted = isinstance(value, int | float) and 0 <= value < 1, "a number from 0 to below 1"
    else:
        fits, wanted = isinstance(value, int | float) and 0 < value <= 1, "a positive number of at most 1"
    if not fits:
        stated = "missing" if value is None else f"{value!r:.40}"
        raise UserError(f"{file}: {name} is {stated}; {wanted} is wanted")


def bert(config: BertConfig) -> Model:
    """Builds the encoder as a pair of pure functions.

    `apply(params, ids, *, segments, positions=None, types=None, attended=None, key=None,
    rows=None) -> states [b t d]`. All inputs except `key` and `rows` are [b t]:

    - segments: the number of the text that a token belongs to. Tokens attend within their segment only. A
      row with one text has 1 for its tokens and 0 for padding; a packed row has 1, 2, ... The states of
      padding are finite but meaningless.
    - positions: the position of a token in its text, from 0. None: 0, 1, 2, ... along the row (not packed).
    - types: token types ("sentence A or B"). None: all 0.
    - attended: False for tokens to which no token attends; they attend to others. None: all True.
    - key: the random key of dropout, at the config's rates. None: no dropout.
    - rows: Int [b], row numbers; dropout masks depend on them and on the key. None: 0, 1, ...

    `apply` raises ValueError if positions are None and rows are longer than the position table.
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
        attended: Bool[Any, "b t"] | None = None,
        key: Array | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b t d"]:
        if positions is None:
            if ids.shape[1] > config.max_position_embeddings:
                raise ValueError(
                    f"rows of {ids.shape[1]} tokens, but the encoder has "
                    f"{config.max_position_embeddings} positions; cut the texts"
                )
            positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        if types is None:
            types = jnp.zeros(ids.shape, jnp.int32)
        inputs = [jnp.asarray(x) for x in (ids, segments, positions, types)]
        seen = None if attended is None else jnp.asarray(attended)
        return cast(Array, module.apply({"params": params}, *inputs, seen, rows, rngs=layers.rngs(key)))

    return Model(init, layers.exact(apply))


class _Bert(nn.Module):
    config: BertConfig

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "b t"],
        segments: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        types: Int[Array, "b t"],
        attended: Bool[Array, "b t"] | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b t d"]:
        config = self.config
        rows = layers.places(ids) if rows is None else rows
        states = _Embeddings(config, name="embeddings")(ids, positions, types)
        states = layers.drop(self, config.hidden_dropout_prob, states, rows)
        mask = segments[:, :, None] == segments[:, None, :]  # padding sees padding: no empty softmax
        if attended is not None:
            mask &= attended[:, None, :]
        layer = layers.LayerConfig(
            num_heads=config.num_attention_heads,
            mlp_width=config.intermediate_size,
            activation=ACTIVATIONS[config.hidden_act],
            epsilon=config.layer_norm_eps,
            dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
            kernel_init=nn.initializers.normal(0.02),
        )
        return layers.stack(self, layer, config.num_hidden_layers, states, mask, rows=rows)


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
    """Pools token states into one vector per text. Entry s of a row is its segment s + 1, or zeros if absent.

    Args:
      states: token states.
      segments: the number of the text of each token; 0 for padding.
      positions: the position of each token in its text, from 0.
      num_segments: the number of entries per row.
      pooling: "mean" over the text's tokens (including special tokens), or "cls", its first token.
      normalize: divides each vector by its Euclidean length (at least 1e-12, as torch's `normalize`).
    """
    numbers = jnp.arange(1, num_segments + 1)
    chosen = segments[:, None, :] == numbers[None, :, None]  # [b s t]
    if pooling == "cls":
        chosen &= (positions == 0)[:, None, :]
    weights = chosen.astype(states.dtype)
    weights /= jnp.maximum(weights.sum(-1, keepdims=True), 1)
    with layers.precision(states.dtype):
        pooled = jnp.einsum("bst,btd->bsd", weights, states)
    return unit_length(pooled) if normalize else pooled


def unit_length(vectors: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Vectors divided by their length. A zero vector stays zero, with a finite gradient."""
    squares = jnp.sum(jnp.square(vectors), -1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


_PREFIX = r"(?:(?:bert|roberta)\.)?"
_LAYER = _PREFIX + r"encoder\.layer\.(?P<layer>\d+)\."


def _norm_rules(tensor: str, path: str) -> dict[str, Rule]:
    # Checkpoints converted from TensorFlow call scale and bias gamma and beta.
    return {
        tensor + r"\.(?:weight|gamma)": Rule(f"{path}/scale"),
        tensor + r"\.(?:bias|beta)": Rule(f"{path}/bias"),
    }


def dense_rules(tensor: str, path: str) -> dict[str, Rule]:
    """Rules that map weight and bias of a torch `Linear`, whose name matches this pattern, to parameters."""
    return {tensor + r"\.weight": Rule(f"{path}/kernel", transpose), tensor + r"\.bias": Rule(f"{path}/bias")}


_POSITIONS = _PREFIX + r"embeddings\.position_embeddings\.weight"

RULES = {
    _PREFIX + r"embeddings\.word_embeddings\.weight": Rule("embeddings/word/embedding"),
    _POSITIONS: Rule("embeddings/position/embedding"),
    _PREFIX + r"embeddings\.token_type_embeddings\.weight": Rule("embeddings/type/embedding"),
    **_norm_rules(_PREFIX + r"embeddings\.LayerNorm", "embeddings/norm"),
    **dense_rules(_LAYER + r"attention\.self\.(?P<part>query|key|value)", "layers/attention/{part}"),
    **dense_rules(_LAYER + r"attention\.output\.dense", "layers/attention/output"),
    **_norm_rules(_LAYER + r"attention\.output\.LayerNorm", "layers/attention_norm"),
    **dense_rules(_LAYER + r"intermediate\.dense", "layers/up"),
    **dense_rules(_LAYER + r"output\.dense", "layers/down"),
    **_norm_rules(_LAYER + r"output\.LayerNorm", "layers/mlp_norm"),
}
"""Parameter names of `BertModel`, on its own or as the body of a model with a head."""


def rules(config: BertConfig) -> dict[str, Rule]:
    """`RULES` for a checkpoint of this configuration. For RoBERTa, unused position rows are dropped."""
    return RULES | {_POSITIONS: Rule("embeddings/position/embedding", lambda t: t[config.position_offset :])}


IGNORED = (
    _PREFIX + r"embeddings\.position_ids",  # a buffer: 0, 1, 2, ...
    _PREFIX + r"pooler\.dense\.(?:weight|bias)",  # trained for next-sentence prediction
    r"cls\.(?:predictions|seq_relationship)\..*",  # pretraining heads
    r"lm_head\..*",  # RoBERTa's
)


def load(folder: Path) -> tuple[Model, Params, BertConfig]:
    """Loads model, parameters (on the default device) and configuration from a Hugging Face folder.
    Raises UserError if configuration or weights are missing, unreadable or inconsistent."""
    config = BertConfig.from_json(folder)
    model = bert(config)
    target = jax.eval_shape(model.init, jax.random.key(0))
    tensors, source = read_tensors(folder), f"the weights in {folder}"
    ignored = (*IGNORED, r"linear\.weight")  # a ColBERT's projection: its body alone is an encoder too
    params = assign(tensors, rules(config), target, ignore=ignored, source=source)
    return model, jax.device_put(params), config
