"""A text about the user, which the language model writes once from the history, before four documents."""

from pbr_jax.config import Config
from pbr_jax.options import Prompt


def get_config() -> Config:
    return Config(system="profile_summary", prompt=Prompt(profile="summary"))
