"""IC-RALM: one document at a time, chosen again from twenty after every five tokens of the answer."""

from pbr_jax.config import Config
from pbr_jax.methods import generate, retrieve


def get_config() -> Config:
    return Config(system="ic_ralm", retrieve=retrieve.Dense(k=20), generate=generate.IcRalm())
