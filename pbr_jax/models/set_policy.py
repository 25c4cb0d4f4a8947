"""The record encoder of PURPLE: scores each record of a user, given a query and all of the records.

Du et al. (PURPLE), https://arxiv.org/abs/2601.12078, 2026, section 3.2. Token states come from a frozen
encoder. The tokens of each record attend to those of the query, and their mean is the record's vector. A
transformer without positions then lets records attend to each other, and a small MLP scores each of them.
Details that the paper does not specify follow the released code.
"""

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.models import layers

Fusion = Literal["cross_attention", "residual_attention", "match", "concat_token", "concat_hidden"]
FUSIONS: tuple[Fusion, ...] = typing.get_args(Fusion)
_ATTENDING = ("cross_attention", "residual_attention", "match")
_TOGETHER = 16  # rows of parts of records that attend together
_QUERIES = "queries"  # the name of what a gradient does not compute again


@dataclass(frozen=True, kw_only=True)
class SetPolicyConfig:
    """The sizes of a record encoder, and how it combines query and records (`fusion`).

    "cross_attention" is that of the paper. "residual_attention" (ours) adds the mean of a record's own
    states. "match" (ours) adds a linear map of the match between the mean states of query and record
    (`matched`). "concat_token" (the ablation "w/o CA") adds the query's mean state to the set as another
    member. "concat_hidden" (the released code) concatenates it to each record's vector, and projects both to
    the original width.
    """

    width: int  # of a token state
    fusion: Fusion = "cross_attention"
    num_layers: int = 12  # 0: every record is scored alone, the ablation "w/o RDM"
    num_heads: int = 12
    mlp_width: int | None = None  # None: four times the width
    decoder_width: int = 256
    dropout: float = 0.1  # in the layers
    residual: bool = False  # the last map begins at zero: untrained, logits are the prior's
    num_features: int = 0  # numbers that are known of a record beside its text

    def __post_init__(self) -> None:
        layers.check_sizes(self, positive=("decoder_width",), width="width", heads="num_heads")
        layers.check_rate("dropout", self.dropout)
        if self.fusion not in FUSIONS or min(self.num_layers, self.num_features) < 0:
            raise UserError(
                f"fusion is {self.fusion!r}, one of {', '.join(FUSIONS)} is wanted; num_layers is "
                f"{self.num_layers} and num_features {self.num_features}, 0 or more is wanted"
            )


def set_policy(config: SetPolicyConfig) -> Model:
    """Builds the record encoder as a pair of pure functions.

    `apply(params, query, records, *, query_mask, token_mask, record_mask, record_of=None, prior=None,
    features=None, key=None, rows=None) -> logits [b n]`:

    - query: Float [b s d], token states of the query; query_mask: Bool [b s], True for tokens.
    - records: Float [b n t d], token states of each record; token_mask: Bool [b n t], True for tokens. A
      record without tokens is scored like an empty text.
    - record_mask: Bool [b n], True for records. Logits of padding are finite but meaningless.
    - record_of: Int [b m], if records are split into parts: `records` is then [b m t d], `token_mask` is
      [b m t], and each part belongs to the record of this index; -1: padding. None: no parts, m = n.
    - features: Float [b n f], additional features of each record, of about unit scale. A linear map of them
      is added to the record's vector. None: f = 0.
    - prior: Float [b n], prior logits of the records, which are added to the output.
    - key: the random key of dropout; None: no dropout.
    - rows: Int [b], the questions' numbers, for dropout; None: 0, 1, ...

    float16 token states are converted to float32. The model is equivariant: reordering the records reorders
    the logits in the same way. `log_scores` converts logits to the paper's f_θ.

    >>> model = set_policy(SetPolicyConfig(width=8, num_layers=1, num_heads=2))
    >>> records, mask = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 5, 4), bool)  # 5 records of 4 tokens
    >>> masks = {"query_mask": mask[:, 0], "token_mask": mask, "record_mask": mask[..., 0]}
    >>> model.apply(model.init(jax.random.key(0)), records[:, 0], records, **masks).shape
    (2, 5)
    """
    module = _SetPolicy(config)

    def init(key: Array) -> Params:
        states, mask = jnp.zeros((1, 1, 1, config.width)), jnp.ones((1, 1, 1), bool)
        features = jnp.zeros((1, 1, config.num_features)) if config.num_features else None
        return dict(module.init(key, states[0], states, mask[0], mask, mask[0], features=features)["params"])

    def apply(
        params: Params,
        query: Float[Any, "b s d"],
        records: Float[Any, "b m t d"],
        *,
        query_mask: Bool[Any, "b s"],
        token_mask: Bool[Any, "b m t"],
        record_mask: Bool[Any, "b n"],
        record_of: Int[Any, "b m"] | None = None,
        prior: Float[Any, "b n"] | None = None,
        features: Float[Any, "b n f"] | None = None,
        key: Array | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b n"]:
        found = 0 if features is None else features.shape[-1]
        if found != config.num_features:
            raise ValueError(f"records have {found} features, want {config.num_features}")
        inputs = [jnp.asarray(x) for x in (query, records)]
        masks = [jnp.asarray(x) for x in (query_mask, token_mask, record_mask)]
        known = [None if x is None else jnp.asarray(x) for x in (record_of, features)]
        logits = cast(
            Array, module.apply({"params": params}, *inputs, *masks, *known, rows, rngs=layers.rngs(key))
        )
        return logits if prior is None else logits + jnp.asarray(prior)

    return Model(init, layers.exact(apply))


def from_arrays(model: Model) -> Callable[..., Float[Array, "b n"]]:
    """`logits(params, batch, key=None)`: `apply` with a dict of inputs, in which `row` means `rows`."""

    def logits(params: Params, batch: Mapping[str, Any], key: Array | None = None) -> Float[Array, "b n"]:
        inputs = ("query_mask", "token_mask", "record_mask", "record_of", "prior", "features")
        named = {name: batch.get(name) for name in inputs}
        return model.apply(params, batch["query"], batch["records"], **named, key=key, rows=batch.get("row"))

    return logits


def log_scores(logits: Float[Array, "*b n"], record_mask: Bool[Array, "*b n"]) -> Float[Array, "*b n"]:
    """log f_θ, where f_θ = sigmoid(logit) are the weights of the Plackett-Luce model (PURPLE, Eq. 3). Padding
    has -inf, and the gradients of its logits are 0."""
    return jnp.where(record_mask, jax.nn.log_sigmoid(logits), -jnp.inf)


def matched(query: Float[Array, "b 1 d"], records: Float[Array, "b n d"]) -> Float[Array, "b n 2*d"]:
    """Match features of the unit mean states q and r of query and record: `q * r` and `|q - r|`, scaled to
    about unit size. The mean of the first half is the cosine. Zero vectors have a finite gradient."""
    d = query.shape[-1]
    q, r = (x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12) for x in (query, records))
    return jnp.concatenate([d * q * r, d**0.5 * jnp.abs(q - r)], -1)


def _wide(states: Array) -> Array:
    return states.astype(jnp.float32) if states.dtype == jnp.float16 else states


class _SetPolicy(nn.Module):
    config: SetPolicyConfig

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "b s d"],
        records: Float[Array, "b m t d"],
        query_mask: Bool[Array, "b s"],
        token_mask: Bool[Array, "b m t"],
        record_mask: Bool[Array, "b n"],
        record_of: Int[Array, "b m"] | None = None,
        features: Float[Array, "b n f"] | None = None,
        rows: Int[Array, "b"] | None = None,
    ) -> Float[Array, "b n"]:
        config, n = self.config, record_mask.shape[1]
        parts = _Parts.of(token_mask, record_of, n)
        pooled = layers.masked_mean(_wide(query), query_mask)[:, None]
        if config.fusion in _ATTENDING:
            fused = _CrossAttention(config.num_heads, name="fusion")(query, records, query_mask, parts)
            if config.fusion == "residual_attention":
                fused += parts.means(records)
            elif config.fusion == "match":
                fused += layers.dense(config.width, "match")(matched(pooled, parts.means(records)))
        else:
            fused = parts.means(records)
            if config.fusion == "concat_token":
                fused = jnp.concatenate([fused, pooled], 1)
                record_mask = jnp.pad(record_mask, ((0, 0), (0, 1)), constant_values=True)
            else:
                both = jnp.concatenate([jnp.broadcast_to(pooled, fused.shape), fused], -1)
                fused = nn.relu(layers.dense(config.width, "fusion")(both))
        if features is not None:
            known = layers.dense(config.width, "features")(features)
            fused += jnp.pad(known, ((0, 0), (0, fused.shape[1] - n), (0, 0)))
        states = nn.LayerNorm(epsilon=1e-5, name="fusion_norm")(fused)
        layer = layers.LayerConfig(
            num_heads=config.num_heads,
            mlp_width=4 * config.width if config.mlp_width is None else config.mlp_width,
            dropout=config.dropout,
            attention_dropout=config.dropout,
            mlp_dropout=config.dropout,
        )
        states = layers.stack(self, layer, config.num_layers, states, record_mask[:, None, :], rows=rows)
        states = states[:, :n]
        hidden = nn.relu(layers.dense(config.decoder_width, "decoder")(states))
        begin = nn.initializers.zeros if config.residual else layers.XAVIER
        return layers.dense(1, "score", begin)(hidden)[..., 0]


class _Parts(NamedTuple):
    """Which tokens make up a record: a row's share of its record's mean, token by token, and whose it is."""

    shares: Float[Array, "b m t"]
    members: Float[Array, "b m n"]

    @classmethod
    def of(cls, token_mask: Array, record_of: Array | None, n: int) -> "_Parts":
        b, m, _ = token_mask.shape
        members = (
            jnp.broadcast_to(jnp.eye(m), (b, m, m)) if record_of is None else jax.nn.one_hot(record_of, n)
        )
        counts = jnp.einsum("bmt,bmn->bn", token_mask.astype(jnp.float32), members)
        of_row = jnp.einsum("bmn,bn->bm", members, 1 / jnp.maximum(counts, 1))
        return cls(token_mask * of_row[..., None], members)

    def means(self, records: Float[Array, "b m t d"]) -> Float[Array, "b n d"]:
        return jnp.einsum("bmtd,bmt,bmn->bnd", _wide(records), self.shares, self.members)


class _CrossAttention(nn.Module):
    """A record's tokens attend to the query's tokens; the mean of what they read, [b n d].

    The mean is taken of the attention weights, with which it commutes. A few rows of tokens are visited at a
    time, and their weights are computed again for the gradient, so memory holds [b h t s] of them.
    """

    num_heads: int

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "b s d"],
        records: Float[Array, "b m t d"],
        mask: Bool[Array, "b s"],
        parts: _Parts,
    ) -> Float[Array, "b n d"]:
        b, m, t, d = records.shape
        n = parts.members.shape[2]
        if not n:
            return jnp.zeros((b, 0, d))
        together = _TOGETHER if m % _TOGETHER == 0 else 1
        key = layers.split_heads(layers.dense(d, "key")(tokens), self.num_heads)  # [b h s e]
        value = layers.split_heads(layers.dense(d, "value")(tokens), self.num_heads)

        # The first argument is `self`: Flax lifts it into the loop, where all rows share one query map.
        def mean_weights(_: nn.Module, place: Int[Array, ""]) -> Float[Array, "b n h s"]:
            # Rows are taken from where they lie. To scan over the rows themselves would first copy all of
            # them, and to widen and multiply all at once moves them through memory twice more.
            states, share, members = (
                jax.lax.dynamic_slice_in_dim(x, place * together, together, 1) for x in (records, *parts)
            )
            states = states.reshape(b, together * t, d)
            query = layers.split_heads(layers.dense(d, "query")(states), self.num_heads)  # [b h t e]
            query = checkpoint_name(query * query.shape[-1] ** -0.5, _QUERIES)
            logits = jnp.einsum("bhte,bhse->bhts", query, key, preferred_element_type=jnp.float32)
            logits = jnp.where(mask[:, None, None, :], logits, jnp.finfo(logits.dtype).min)
            weights = jax.nn.softmax(logits, -1).reshape(b, self.num_heads, together, t, -1)
            return jnp.einsum("bgn,bghs->bnhs", members, jnp.einsum("bhgts,bgt->bghs", weights, share))

        kept = jax.checkpoint_policies.save_only_these_names(_QUERIES)
        some = nn.remat(mean_weights, prevent_cse=False, policy=kept)  # a loop keeps the two passes apart

        def add(module: nn.Module, total: Array, place: Int[Array, ""]) -> tuple[Array, None]:
            return total + some(module, place), None

        each = nn.scan(add, variable_broadcast="params", split_rngs={"params": False})
        begin = jnp.zeros((b, n, self.num_heads, tokens.shape[1]))
        weights, _ = each(self, begin, jnp.arange(m // together))
        read = jnp.einsum("bnhs,bhse->bnhe", weights, value).reshape(b, n, d)
        return layers.dense(d, "output")(read)
