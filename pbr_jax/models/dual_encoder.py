"""The dual encoder: embeds queries, documents and users in one space, where relevance is the cosine.

Shi et al. (CFRAG), https://arxiv.org/abs/2504.05731, 2025, Eq. 3-5::

    S(u, q, d) = (1 - α) cos(q, d) + α cos(MLP_1(e_u), d)

Without users (`user_width=None`) it is the usual dual encoder of dense retrieval.

>>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
>>> tower = bert.BertConfig(**sizes, intermediate_size=8, max_position_embeddings=4)
>>> model = dual_encoder(DualEncoderConfig(tower=tower))
>>> texts = Tokens(jnp.ones((2, 4), int), jnp.ones((2, 4), bool))
>>> model.apply(model.init(jax.random.key(0)), queries=texts).queries.shape
(2, 8)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.models import bert, layers


@dataclass(frozen=True, kw_only=True)
class DualEncoderConfig:
    """The sizes of the towers and of MLP_1, which maps user embeddings into their space."""

    tower: bert.BertConfig
    pooling: bert.Pooling = "mean"
    normalize: bool = True  # texts to unit length, so that inner products are cosines
    user_width: int | None = None  # of a user embedding; None: no users
    user_layers: int = 2  # of MLP_1, tanh between them; the released code has one linear map

    def __post_init__(self) -> None:
        if self.user_layers < 1:
            raise UserError(f"user_layers is {self.user_layers}; at least one is wanted")


class Tokens(NamedTuple):
    """Texts as token ids, one per row. `mask` is True for tokens and False for the padding after them."""

    ids: Int[Any, "b t"]
    mask: Bool[Any, "b t"]


class Embeddings(NamedTuple):
    """The unit vectors of the inputs; None: not given. Texts are not normalized if `normalize` is False."""

    queries: Float[Array, "q d"] | None
    documents: Float[Array, "c d"] | None
    users: Float[Array, "b d"] | None


def dual_encoder(config: DualEncoderConfig) -> Model:
    """Builds the encoder as a pair of pure functions. Each of its inputs may be given alone.

    `apply(params, *, queries=None, documents=None, users=None, key=None, rows=None) -> Embeddings`:

    - queries, documents: `Tokens`.
    - users: user embeddings, Float [b u], not necessarily unit vectors. The output is that of MLP_1.
    - key: the random key of dropout in the towers; None: no dropout.
    - rows: Int [b], numbers of the texts (queries or documents), for dropout; None: 0, 1, ...

    Parameters: `tower`, for queries and documents, as in `bert`; `user` if there are users.
    """
    tower = bert.bert(config.tower)
    users_map = layers.mlp(config.user_width or 0, (config.tower.hidden_size,) * config.user_layers)

    def init(key: Array) -> Params:
        params = {"tower": tower.init(jax.random.fold_in(key, 0))}
        if config.user_width is not None:
            params["user"] = users_map.init(jax.random.fold_in(key, 2))
        return params

    def embed(
        params: Params, texts: Tokens | None, key: Array | None, rows: Int[Any, "b"] | None
    ) -> Float[Array, "b d"] | None:
        if texts is None:
            return None
        segments = jnp.asarray(texts.mask, jnp.int32)
        states = tower.apply(params["tower"], texts.ids, segments=segments, key=key, rows=rows)
        positions = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
        how: Any = {"pooling": config.pooling, "normalize": config.normalize}
        return bert.pool(states, segments, positions, 1, **how)[:, 0]

    def project(params: Params, users: Float[Any, "b u"] | None) -> Float[Array, "b d"] | None:
        if users is None:
            return None
        if config.user_width is None:
            raise ValueError("user embeddings are given, but user_width is None: state their width there")
        return bert.unit_length(users_map.apply(params["user"], users))

    def apply(
        params: Params,
        *,
        queries: Tokens | None = None,
        documents: Tokens | None = None,
        users: Float[Any, "b u"] | None = None,
        key: Array | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Embeddings:
        keys = (None, None) if key is None else jax.random.split(key)
        return Embeddings(
            queries=embed(params, queries, keys[0], rows),
            documents=embed(params, documents, keys[1], rows),
            users=project(params, users),
        )

    return Model(init, apply)


def from_bert(config: DualEncoderConfig, tower: Params, key: Array) -> Params:
    """Parameters with the tower of a pretrained BERT (`bert.load`) and a randomly initialised user map."""

    def fresh(key: Array) -> Params:  # under jit the random tower is no output, and so never made
        return {name: part for name, part in dual_encoder(config).init(key).items() if name == "user"}

    return {"tower": tower} | jax.jit(fresh)(key)


def personalize(
    queries: Float[Array, "q d"], users: Float[Array, "q d"], alpha: float | Float[Array, ""]
) -> Float[Array, "q d"]:
    """Personalized query vectors (1 - α) q + α u', whose inner product with a document is the score of Eq. 5.
    So one index of documents serves all users. α = 0 is the query alone; the released code uses 0.1."""
    return (1 - alpha) * queries + alpha * users
