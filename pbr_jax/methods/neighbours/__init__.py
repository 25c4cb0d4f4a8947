"""Slot 2: chooses the users whose histories are searched.

The asking user is first and counts as one of the `m`. Of other users, only documents that `Store.visible`
allows are searched.
"""

from pbr_jax.methods.neighbours.cohorts import Cohorts
from pbr_jax.methods.neighbours.random import Random
from pbr_jax.methods.neighbours.self import Self
from pbr_jax.methods.neighbours.similar import Contrastive, Mean

METHODS = (Self, Contrastive, Mean, Cohorts, Random)

__all__ = ["METHODS", "Cohorts", "Contrastive", "Mean", "Random", "Self"]
