"""PBR's fusion: one vector from query, anchor, utterances and reasoning.

Zhang et al., "Personalize Before Retrieve: LLM-based Personalized Query Expansion for User-Centric
Retrieval", 2025, section 3.4.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def fuse(
    queries: Float[Array, "b d"],
    anchors: Float[Array, "b d"],
    utterances: Float[Array, "b d"],
    reasoning: Float[Array, "b d"],
    *,
    weighted: bool = True,
) -> Float[Array, "b d"]:
    """q* = q + c + w1 f + w2 r, where w = 1 + cos((q + c) / 2, ·) (PBR, Eq. 11 to 14).

    Missing parts are rows of zeros. If not `weighted`, w1 = w2 = 1.
    """
    centre = (queries + anchors) / 2
    shift = sum(
        (1 + similarity(centre, part) if weighted else jnp.ones(len(part)))[:, None] * part
        for part in (utterances, reasoning)
    )
    return queries + anchors + shift


def similarity(a: Float[Array, "b d"], b: Float[Array, "b d"]) -> Float[Array, " b"]:
    """The cosine of each pair of rows; 0 if one of them is a zero vector."""
    lengths = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
    return jnp.einsum("bd,bd->b", a, b, precision="highest") / jnp.where(lengths > 0, lengths, 1)
