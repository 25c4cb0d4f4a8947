"""Expansions that a language model writes from the query alone. Sources are named in `wording`."""

from collections.abc import Callable, Sequence

from pbr_jax.config import Config
from pbr_jax.pipeline.expand import parsing, wording
from pbr_jax.pipeline.expand.asking import ask, averaged, joined, vectors, with_vectors
from pbr_jax.pipeline.pipeline import Examples, Expand, Query, Resources

_Read = Callable[[str], list[str] | None]
_Combine = Callable[[Resources, Sequence[str], Sequence[Sequence[str]]], list[Query]]


def hyde(config: Config, resources: Resources) -> Expand:
    """A hypothetical answer; its vector and the query's are averaged."""
    return _written(config, resources, wording.HYDE, _passage, averaged)


def query2doc(config: Config, resources: Resources) -> Expand:
    """A passage that answers, appended to the query."""
    return _written(config, resources, wording.QUERY2DOC, _passage, joined)


def query2term(config: Config, resources: Resources) -> Expand:
    """Keywords of an answer, appended to the query."""
    return _written(config, resources, wording.QUERY2TERM, parsing.strings, joined)


def cot(config: Config, resources: Resources) -> Expand:
    """A step-by-step answer, appended to the query."""
    return _written(config, resources, wording.COT, _passage, joined)


def rewrite(config: Config, resources: Resources) -> Expand:
    """The query, reworded; the words of the user's own are no longer searched for."""

    def replaced(resources: Resources, queries: Sequence[str], added: Sequence[Sequence[str]]) -> list[Query]:
        texts = [(query, *reworded)[-1] for query, reworded in zip(queries, added)]
        return with_vectors([(text,) for text in texts], vectors(resources, texts, "query"))

    return _written(config, resources, wording.REWRITE, _line, replaced)


def _written(config: Config, resources: Resources, template: str, read: _Read, combine: _Combine) -> Expand:
    def expand(examples: Examples) -> list[Query]:
        queries = [example.query for example in examples]
        answers = ask(config, resources, [template.format(query=query) for query in queries], read)
        return combine(resources, queries, [answer or [] for answer in answers])

    return expand


def _passage(text: str) -> list[str] | None:
    found = parsing.passage(text)
    return None if found is None else [found]


def _line(text: str) -> list[str] | None:
    found = parsing.line(text)
    return None if found is None else [found]
