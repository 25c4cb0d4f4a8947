"""CFRAG: similar users, by an encoder of histories that contrastive learning trains (Shi et al., 2025)."""

from dataclasses import dataclass
from typing import Literal

from pbr_jax.methods.neighbours.similar import Similar


@dataclass(frozen=True, kw_only=True)
class Contrastive(Similar):
    """The most similar users, by vectors of the trained encoder (`user_encoder`)."""

    method: Literal["contrastive"] = "contrastive"
