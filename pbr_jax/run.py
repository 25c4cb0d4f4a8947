"""Now `pbr_jax.experiment`; `pbr_jax.run` is a function."""
