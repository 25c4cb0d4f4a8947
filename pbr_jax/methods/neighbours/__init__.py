"""Slot 2: chooses the users whose histories are searched.

The asking user is first and counts as one of the `m`. Of other users, only documents that `Store.visible`
allows are searched.
"""

from pbr_jax.methods.neighbours.cohorts import Cohorts as Cohorts
from pbr_jax.methods.neighbours.random import Random as Random
from pbr_jax.methods.neighbours.self import Self as Self
from pbr_jax.methods.neighbours.similar import Contrastive as Contrastive
from pbr_jax.methods.neighbours.similar import Mean as Mean

METHODS = (Self, Contrastive, Mean, Cohorts, Random)
