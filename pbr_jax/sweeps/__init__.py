"""Many runs from one config file."""

from pbr_jax.sweeps.sweep import grid as grid
from pbr_jax.sweeps.sweep import product as product
from pbr_jax.sweeps.sweep import seeds as seeds
from pbr_jax.sweeps.sweep import zipped as zipped
