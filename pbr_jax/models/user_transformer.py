"""The user encoder: maps a history of document embeddings to one vector.

Shi et al. (CFRAG), https://arxiv.org/abs/2504.05731, 2025, Eq. 1:
e_u = mean(Trm(E_u + P)), with E_u [n d] the embeddings of the user's documents, oldest first, and P
learned positions. Details that the paper does not specify follow the released code.
"""

from dataclasses import dataclass
from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Model, Params
from pbr_jax.models import layers


@dataclass(frozen=True, kw_only=True)
class UserTransformerConfig:
    """The sizes of a user encoder."""

    width: int  # of a document embedding and of the user embedding
    max_documents: int = 100  # longest history
    num_layers: int = 1
    num_heads: int = 2
    mlp_width: int | None = None  # None: as wide as the embeddings (768 in the released code)
    dropout: float = 0.1

    def __post_init__(self) -> None:
        layers.check_sizes(self, positive=("max_documents", "num_layers"), width="width", heads="num_heads")
        layers.check_rate("dropout", self.dropout)


def user_transformer(config: UserTransformerConfig) -> Model:
    """Builds the user encoder as a pair of pure functions.

    `apply(params, history, mask, *, replaced=None, key=None, rows=None) -> users [b d]`, not normalised:

    - history: Float [b n d], document embeddings, oldest first. Gradients flow to them.
    - mask: Bool [b n], True for documents. Padding takes no position. A user without documents gets zeros.
    - replaced: Bool [b n], True if the learned [mask] embedding replaces the document (section 4.1.2).
    - key: the random key of dropout; None: no dropout.
    - rows: Int [b], user numbers; dropout masks depend on them and on the key. None: 0, 1, ...

    The computation uses the dtype of the parameters.

    Raises:
      ValueError: a history does not have the config's width, or is longer than `max_documents`.

    >>> import jax
    >>> model = user_transformer(UserTransformerConfig(width=8))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, jnp.ones((2, 3, 8)), jnp.ones((2, 3), bool)).shape
    (2, 8)
    """
    module = _UserTransformer(config)

    def init(key: Array) -> Params:
        return dict(
            module.init(key, jnp.zeros((1, 1, config.width)), *[jnp.ones((1, 1), bool)] * 2)["params"]
        )

    def apply(
        params: Params,
        history: Float[Any, "b n d"],
        mask: Bool[Any, "b n"],
        *,
        replaced: Bool[Any, "b n"] | None = None,
        key: Array | None = None,
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b d"]:
        _, n, d = history.shape
        if n > config.max_documents or d != config.width:
            raise ValueError(
                f"histories [b n d] are {list(history.shape)}; n is at most {config.max_documents} "
                f"(max_documents) and d {config.width} (width): cut histories to their latest documents, "
                "or raise max_documents"
            )
        if replaced is None:
            replaced = jnp.zeros(mask.shape, bool)
        inputs = [jnp.asarray(x) for x in (history, mask, replaced)]
        return cast(Array, module.apply({"params": params}, *inputs, rows, rngs=layers.rngs(key)))

    return Model(init, layers.exact(apply))


class _UserTransformer(nn.Module):
    config: UserTransformerConfig

    @nn.compact
    def __call__(
        self,
        history: Float[Array, "b n d"],
        mask: Bool[Array, "b n"],
        replaced: Bool[Array, "b n"],
        rows: Int[Any, "b"] | None = None,
    ) -> Float[Array, "b d"]:
        config = self.config
        # As long as a document embedding of unit length.
        hidden = self.param("mask", nn.initializers.normal(config.width**-0.5), (config.width,))
        history = jnp.where(replaced[..., None], hidden[None, None], history.astype(hidden.dtype))
        positions = nn.Embed(
            config.max_documents, config.width, embedding_init=layers.XAVIER, name="position"
        )(jnp.maximum(jnp.cumsum(mask, -1) - 1, 0))
        layer = layers.LayerConfig(
            num_heads=config.num_heads,
            mlp_width=config.width if config.mlp_width is None else config.mlp_width,
            dropout=config.dropout,
            attention_dropout=config.dropout,
            mlp_dropout=config.dropout,
        )
        states = history + positions
        states = layers.stack(self, layer, config.num_layers, states, mask[:, None, :], rows=rows)
        return layers.masked_mean(states, mask)
