"""PBR: the query personalized before retrieval.

Zhang et al., "Personalize Before Retrieve: LLM-based Personalized Query Expansion for User-Centric
Retrieval", 2025. P-PRF writes what the user might say (utterances) and how the user would reason towards
the answer; P-Anchor is the centre of the user's documents (`pbr_jax.index.page_rank`); `fusion` adds both
to the query's vector.
"""

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from pbr_jax.config import Config
from pbr_jax.data import expansions
from pbr_jax.data.expansions import Expansion
from pbr_jax.index import page_rank
from pbr_jax.pipeline.expand import parsing, wording
from pbr_jax.pipeline.expand.asking import ask, encoded, look, model, sums_of
from pbr_jax.pipeline.expand.fusion import fuse
from pbr_jax.pipeline.pipeline import Examples, Expand, Query, Resources

_Feedback = Callable[[Examples], list[Expansion]]
_FindAnchors = Callable[[Examples, np.ndarray], np.ndarray]


def pbr(config: Config, resources: Resources) -> Expand:
    """Texts: the query, the utterances, the reasoning. Vector: their fusion with the user's anchor."""
    feedback, find_anchors, o = _feedback(config, resources), _anchors(config, resources), config.expand

    def expand(examples: Examples) -> list[Query]:
        written = feedback(examples)
        with resources.tally.timed("expand_encode"):
            queries = encoded(resources, [example.query for example in examples], "query")
            utterances = _mean(resources, [expansion.utterances for expansion in written])
            reasoning = _mean(resources, [expansion.reasoning for expansion in written])
        with resources.tally.timed("expand_anchor"):
            anchors = o.anchor_weight * find_anchors(examples, queries)
        parts = map(jnp.asarray, (queries, anchors, utterances, reasoning))
        fused = np.asarray(fuse(*parts, weighted=o.weights == "cosine"))
        return [
            Query((example.query, *expansion.utterances, *expansion.reasoning), vector)
            for example, expansion, vector in zip(examples, written, fused, strict=True)
        ]

    return expand


def _mean(resources: Resources, texts: list[tuple[str, ...]]) -> np.ndarray:
    """Mean embedding [n d] of each list of texts (Eq. 5); 0 for an empty one."""
    sums, counts = sums_of(resources, texts, "query")
    return sums / np.maximum(counts, 1)


# -- P-PRF ---------------------------------------------------------------------------------------


def _feedback(config: Config, resources: Resources) -> _Feedback:
    """Utterances and reasoning of each example: of those that the config wants, the rest empty."""
    o = config.expand
    written = expansions.read(Path(o.released)) if o.released else None

    def feedback(examples: Examples) -> list[Expansion]:
        if not o.utterances and not o.reasoning:
            return [Expansion() for _ in examples]
        made = _prf(config, resources, examples) if written is None else [written(e.id) for e in examples]
        return [
            Expansion(e.utterances if o.utterances else (), e.reasoning if o.reasoning else ()) for e in made
        ]

    return feedback


def _prf(config: Config, resources: Resources, examples: Examples) -> list[Expansion]:
    """The language model's, from the `k1` documents of the user nearest to the query (Eq. 4 to 6)."""
    o, queries = config.expand, [Query((example.query,)) for example in examples]
    rankings = look(config, resources, examples, queries, o.k1)
    shown = [
        wording.numbered([candidate.document for candidate in ranking], o.history_tokens, model(resources))
        for ranking in rankings
    ]

    def prompts(template: str) -> list[str]:
        return [
            template.format(query=example.query, documents=documents, m=o.m)
            for example, documents in zip(examples, shown, strict=True)
        ]

    nothing = [None] * len(examples)
    utterances = (
        ask(config, resources, prompts(wording.UTTERANCES), parsing.strings) if o.utterances else nothing
    )
    reasoning = (
        ask(config, resources, prompts(wording.REASONING), parsing.passage) if o.reasoning else nothing
    )
    return [
        Expansion(tuple(said or [example.query])[: o.m], (thought or example.query,))
        for example, said, thought in zip(examples, utterances, reasoning, strict=True)
    ]


# -- P-Anchor ------------------------------------------------------------------------------------


def _anchors(config: Config, resources: Resources) -> _FindAnchors:
    """The anchor of each example, of the documents that it sees; some ways look at its query too."""
    o, store, vectors = config.expand, resources.store, resources.embeddings
    if vectors is None:
        raise ValueError("PBR needs vectors of the users' documents; none were given")
    walk = page_rank.Walk(o.theta, o.k2, o.damping, o.iterations, temperature=o.temperature)
    known = page_rank.Anchors(walk)

    def histories(examples: Examples) -> list[np.ndarray]:
        return [store.visible(example, example.user_id) for example in examples]

    def none(examples: Examples, queries: np.ndarray) -> np.ndarray:
        return np.zeros_like(queries)

    def mean(examples: Examples, queries: np.ndarray) -> np.ndarray:
        own = [vectors[rows] for rows in histories(examples)]
        return np.stack([of_user.sum(0) / max(len(of_user), 1) for of_user in own])

    def ranked(examples: Examples, queries: np.ndarray) -> np.ndarray:
        return known(vectors, histories(examples))

    def biased(examples: Examples, queries: np.ndarray) -> np.ndarray:
        return page_rank.anchors(vectors, histories(examples), walk, queries)

    def grouped(examples: Examples, queries: np.ndarray) -> np.ndarray:
        return page_rank.anchors(vectors, histories(examples), page_rank.Groups(o.clusters), queries)

    ways = {"none": none, "mean": mean, "page_rank": ranked, "query": biased, "cluster": grouped}
    return ways[o.anchor]
