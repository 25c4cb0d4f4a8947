"""The frozen language model: one protocol, `LLM`, and its backends."""

from pbr_jax import config as schema
from pbr_jax.llm.protocol import LLM, Prompt, Score

__all__ = ["LLM", "Prompt", "Score", "load"]


def load(config: schema.LLM) -> LLM:
    """The language model that a config names, cached per config; weights are read at first use.

    Raises:
      UserError: no such model, or one that is not supported.
    """
    from pbr_jax.llm import jax_backend

    return jax_backend.load(config)
