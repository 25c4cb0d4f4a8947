"""Slot 2: whose histories are searched.

The asking user comes first and counts among the `m`. Others give documents only as `Store.visible` allows.
"""

from pbr_jax.methods.neighbours.cohorts import Cohorts
from pbr_jax.methods.neighbours.contrastive import Contrastive
from pbr_jax.methods.neighbours.mean import Mean
from pbr_jax.methods.neighbours.random import Random
from pbr_jax.methods.neighbours.self import Self

METHODS = (Self, Contrastive, Mean, Cohorts, Random)

__all__ = ["METHODS", "Cohorts", "Contrastive", "Mean", "Random", "Self"]
