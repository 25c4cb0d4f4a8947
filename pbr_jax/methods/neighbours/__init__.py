"""Slot 2: chooses the users whose histories are searched.

The asking user is first and counts as one of the `m`. Of other users, only documents that `Store.visible`
allows are searched.
"""

from pbr_jax.methods.neighbours.cohorts import Cohorts
from pbr_jax.methods.neighbours.contrastive import Contrastive
from pbr_jax.methods.neighbours.mean import Mean
from pbr_jax.methods.neighbours.random import Random
from pbr_jax.methods.neighbours.self import Self

METHODS = (Self, Contrastive, Mean, Cohorts, Random)

__all__ = ["METHODS", "Cohorts", "Contrastive", "Mean", "Random", "Self"]
