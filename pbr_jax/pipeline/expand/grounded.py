"""Expansions that a language model writes and the user's own history corrects. Sources are in `wording`."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from pbr_jax.config import Config
from pbr_jax.pipeline.expand import parsing, wording
from pbr_jax.pipeline.expand.asking import ask, averaged, encoded, look, model, vectors, with_vectors
from pbr_jax.pipeline.pipeline import Examples, Expand, Query, Ranking, Resources


def mill(config: Config, resources: Resources) -> Expand:
    """Sub-queries with passages, and found documents, each kept where the others agree (MILL).

    A passage is scored by its similarity to the `k1` documents found for the query, a document by its
    similarity to the passages; the better half of each is kept.
    """
    o = config.expand

    def expand(examples: Examples) -> list[Query]:
        queries = [example.query for example in examples]
        prompts = [wording.MILL.format(query=query, m=o.m) for query in queries]
        answers = ask(config, resources, prompts, parsing.strings)
        passages = [(answer or [])[: o.m] for answer in answers]
        rankings = look(config, resources, examples, _plain(examples), o.k1)
        written = _vectors_of(resources, passages)
        parts = [
            _agreeing(of_query, vectors, ranking, resources.embeddings)
            for of_query, vectors, ranking in zip(passages, written, rankings, strict=True)
        ]
        return averaged(resources, queries, parts)

    return expand


def _vectors_of(resources: Resources, texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Unit vectors [n d] of each list of texts."""
    flat = encoded(resources, [text for of_query in texts for text in of_query], "document")
    return np.split(_units(flat), np.cumsum([len(of_query) for of_query in texts])[:-1])


def _agreeing(
    passages: list[str], written: np.ndarray, ranking: Ranking, embeddings: np.ndarray | None
) -> list[str]:
    """The better half of passages and of documents; all passages where no document was found."""
    if not passages or not ranking or embeddings is None:
        return passages
    documents = [candidate.document.text for candidate in ranking]
    agreement = written @ _units(embeddings[[candidate.row for candidate in ranking]]).T
    return [*_better_half(passages, agreement.sum(1)), *_better_half(documents, agreement.sum(0))]


def thinkqe(config: Config, resources: Resources) -> Expand:
    """Passages written in rounds: each sees documents that the passages so far have found (ThinkQE).

    A document is shown once. Rounds that find nothing new to show, and those whose answer cannot be read,
    add nothing.
    """
    o = config.expand

    def expand(examples: Examples) -> list[Query]:
        queries = [example.query for example in examples]
        passages: list[list[str]] = [[] for _ in examples]
        shown: list[set[int]] = [set() for _ in examples]
        for _ in range(o.rounds):
            current = averaged(resources, queries, passages)
            rankings = look(config, resources, examples, current, o.k1 * o.rounds)
            new = [[c for c in r if c.row not in s][: o.k1] for r, s in zip(rankings, shown, strict=True)]
            asking = [place for place, found in enumerate(new) if found]
            prompts = [_shown(config, resources, wording.THINKQE, queries[p], new[p]) for p in asking]
            for place, answer in zip(asking, ask(config, resources, prompts, parsing.passage), strict=True):
                shown[place] |= {candidate.row for candidate in new[place]}
                passages[place] += [answer] if answer else []
        return averaged(resources, queries, passages)

    return expand


def rafe(config: Config, resources: Resources) -> Expand:
    """The one of several rewrites whose documents answer the question best, by the model's own feedback.

    RaFe trains a rewriter with a reranker's scores; here the feedback chooses among rewrites, the query
    itself included: the mean log-probability of the query's tokens after the `k1` documents that a
    rewrite finds. Of equals the first is taken, so the query where no document was found.
    """
    o = config.expand

    def expand(examples: Examples) -> list[Query]:
        prompts = [wording.RAFE.format(query=example.query, m=o.m) for example in examples]
        answers = ask(config, resources, prompts, parsing.strings)
        options = [[e.query, *(a or [])[: o.m]] for e, a in zip(examples, answers, strict=True)]
        asking = [example for example, texts in zip(examples, options) for _ in texts]
        scores = iter(_feedback(config, resources, asking, [text for texts in options for text in texts]))
        texts = [of_query[int(np.argmax(list(islice(scores, len(of_query)))))] for of_query in options]
        return with_vectors([(text,) for text in texts], vectors(resources, texts, "query"))

    return expand


def _feedback(config: Config, resources: Resources, examples: Examples, texts: Sequence[str]) -> list[float]:
    """log p(query | documents found by text) per token; -inf where nothing is found."""
    rankings = look(config, resources, examples, [Query((text,)) for text in texts], config.expand.k1)
    found = [place for place, ranking in enumerate(rankings) if ranking]
    prompts = [
        [{"role": "user", "content": _shown(config, resources, wording.FEEDBACK, "", rankings[place])}]
        for place in found
    ]
    with resources.tally.timed("expand_llm"):
        asked = [examples[place].query for place in found]
        answers = model(resources).score(prompts, asked) if found else []
    scores = [-np.inf] * len(texts)
    for place, answer in zip(found, answers, strict=True):
        scores[place] = answer.mean
    return scores


def _shown(config: Config, resources: Resources, template: str, query: str, ranking: Ranking) -> str:
    documents = [candidate.document for candidate in ranking]
    text = wording.numbered(documents, config.expand.history_tokens, model(resources))
    return template.format(query=query, documents=text)


def _plain(examples: Examples) -> list[Query]:
    return [Query((example.query,)) for example in examples]


def _units(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _better_half(texts: list[str], scores: np.ndarray) -> list[str]:
    """The half (rounded up) of highest score, in the order given."""
    best = np.argsort(-scores, kind="stable")[: (len(texts) + 1) // 2]
    return [texts[place] for place in sorted(best)]
