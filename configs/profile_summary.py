"""A summary of the user, written once by the language model from the history, before four documents."""

from pbr_jax.config import Config
from pbr_jax.options import Prompt


def get_config() -> Config:
    return Config(system="profile_summary", prompt=Prompt(profile="summary"))
