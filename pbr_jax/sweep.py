"""Now `pbr_jax.sweeps`; `pbr_jax.sweep` is a function."""
