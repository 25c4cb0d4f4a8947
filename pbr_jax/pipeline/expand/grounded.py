"""Expansions that a language model writes and the user's own history corrects. Sources are in `wording`."""

from collections.abc import Sequence

import numpy as np

from pbr_jax.config import Config
from pbr_jax.pipeline.expand import parsing, wording
from pbr_jax.pipeline.expand.asking import ask, averaged, encoder, look, model, vectors, with_vectors
from pbr_jax.pipeline.pipeline import Examples, Expand, Query, Ranking, Resources
from pbr_jax.types import Example


def mill(config: Config, resources: Resources) -> Expand:
    """Sub-queries with passages, and found documents, each kept where the others agree (MILL).

    A passage is scored by its similarity to the `k1` documents found for the query, a document by its
    similarity to the passages; the better half of each is kept.
    """
    o = config.expand

    def kept(example: Example, passages: list[str], ranking: Ranking) -> tuple[list[str], list[str]]:
        documents = [candidate.document.text for candidate in ranking]
        if not passages or not documents:
            return passages, []
        written, found = (
            _units(encoder(resources).encode(t, role="document")) for t in (passages, documents)
        )
        agreement = written @ found.T
        return _better_half(passages, agreement.sum(1)), _better_half(documents, agreement.sum(0))

    def expand(examples: Examples) -> list[Query]:
        queries = [example.query for example in examples]
        prompts = [wording.MILL.format(query=query, m=o.m) for query in queries]
        answers = ask(config, resources, prompts, parsing.strings)
        rankings = look(config, resources, examples, _plain(examples), o.k1)
        parts = [kept(e, (a or [])[: o.m], r) for e, a, r in zip(examples, answers, rankings, strict=True)]
        return averaged(resources, queries, [passages + documents for passages, documents in parts])

    return expand


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
        asked = [
            (example, text)
            for example, answer in zip(examples, answers, strict=True)
            for text in (example.query, *(answer or [])[: o.m])
        ]
        scores = _feedback(config, resources, [example for example, _ in asked], [text for _, text in asked])
        best: dict[int, tuple[float, str]] = {}
        places = [
            place for place, answer in enumerate(answers) for _ in range(1 + len((answer or [])[: o.m]))
        ]
        for place, (_, text), score in zip(places, asked, scores, strict=True):
            if place not in best or score > best[place][0]:
                best[place] = (score, text)
        texts = [best[place][1] for place in range(len(examples))]
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
        answers = model(resources).score(prompts, [examples[place].query for place in found])
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
