"""Slot 1: what is searched for.

An expansion gives texts, which word retrievers search for, and one vector, where there is an encoder, which
dense retrievers search for. Methods of `written` ask a language model alone, those of `grounded` look at
the user's history too, and `pbr` does so in the user's manner. Where a model's answer cannot be read, the
query stands in its place.
"""

from pbr_jax import config as schema
from pbr_jax.config import Config
from pbr_jax.pipeline.expand.grounded import mill, rafe, thinkqe
from pbr_jax.pipeline.expand.pbr import pbr
from pbr_jax.pipeline.expand.written import cot, hyde, query2doc, query2term, rewrite
from pbr_jax.pipeline.pipeline import Examples, Expand, Query, Resources


def none(config: Config, resources: Resources) -> Expand:
    """The query as it is."""

    def expand(examples: Examples) -> list[Query]:
        return [Query((example.query,)) for example in examples]

    return expand


METHODS = {
    "none": none,
    "hyde": hyde,
    "query2term": query2term,
    "query2doc": query2doc,
    "rewrite": rewrite,
    "cot": cot,
    "mill": mill,
    "thinkqe": thinkqe,
    "rafe": rafe,
    "pbr": pbr,
}


def uses_llm(options: schema.Expand) -> bool:
    """Whether the expansion asks a language model."""
    if options.method == "pbr":
        return not options.released and (options.utterances or options.reasoning)
    return options.method != "none"


def uses_vectors(options: schema.Expand) -> bool:
    """Whether the expansion needs vectors of the user's documents, whatever the retriever does."""
    return options.method in ("mill", "thinkqe", "rafe", "pbr")
