"""The frozen language model: one protocol, `LLM`, its backends, and the cache around each of them."""

import functools
from pathlib import Path

from pbr_jax import options as schema
from pbr_jax.llm import answers_file, cache
from pbr_jax.llm.cache import Counting as Counting
from pbr_jax.llm.protocol import LLM as LLM
from pbr_jax.llm.protocol import VERSION as VERSION
from pbr_jax.llm.protocol import Prompt as Prompt
from pbr_jax.llm.protocol import Sampling as Sampling
from pbr_jax.llm.protocol import Score as Score
from pbr_jax.llm.protocol import TooLong as TooLong
from pbr_jax.llm.protocol import naming as naming
from pbr_jax.llm.tokens import chat as chat


def load(config: schema.LLM) -> cache.Cached:
    """The language model that a config names, behind the cache of answers; its weights are shared as long as
    config and model are the same. Weights are read at the first answer that is not in the cache. Raises
    UserError: no such model, or one that is not supported."""
    llm, file = _kept(config, _backend(config).fingerprint), answers_file.location()
    return cache.Cached(llm, file, config.offline, again=config.ask_again, name=config.model)


def counting(config: schema.LLM, *, known: bool = True) -> Counting:
    """The same model as one that only counts what it is asked. `known`: what the cache answers is not
    counted. Errors as of `load`."""
    file = answers_file.location() if known else None
    return Counting(_backend(config), file, again=config.ask_again)


@functools.lru_cache(maxsize=4)
def _kept(config: schema.LLM, content: str) -> LLM:
    """The model of this content, which stays in memory."""
    return _backend(config)


def _backend(config: schema.LLM) -> LLM:
    from pbr_jax.models import pretrained

    if config.backend == "http":
        from pbr_jax.llm.http.backend import HTTPLLM

        return HTTPLLM(config)
    if is_t5(pretrained.locate(config.model)):
        from pbr_jax.llm.engine.t5_backend import T5LLM

        return T5LLM.load(config)
    from pbr_jax.llm.engine.jax_backend import JaxLLM

    return JaxLLM.load(config)


def notes(config: schema.LLM) -> list[str]:
    """What readers of results should know of how this model's chat template is used."""
    from pbr_jax.models import pretrained

    if config.backend == "http":  # the server writes prompts, with a template of its own
        return []
    place = pretrained.locate(config.model)
    return [f"{place.name}: {note}" for note in chat.load(place, config.date).notes]


def is_t5(path: Path) -> bool:
    """Whether a model is an encoder-decoder of the T5 family; GGUF files are not."""
    from pbr_jax.models import pretrained

    if not path.is_dir():
        return False
    config = pretrained.read_json(path / "config.json")
    return isinstance(config, dict) and config.get("model_type") == "t5"
