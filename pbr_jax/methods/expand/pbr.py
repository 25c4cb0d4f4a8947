"""PBR: the query personalized before retrieval.

Zhang et al., "Personalize Before Retrieve: LLM-based Personalized Query Expansion for User-Centric
Retrieval", 2025. P-PRF writes what the user might say (utterances) and how the user would reason towards
the answer (PBR, Eq. 5 and 6). P-Anchor is the centre of the user's documents (`pbr_jax.index.page_rank`).
`fusion` adds both to the query's vector.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pbr_jax.corpus.store import Store
from pbr_jax.data import expansions
from pbr_jax.data.expansions import Expansion
from pbr_jax.graph import Node, Value, builds_nodes
from pbr_jax.index import page_rank
from pbr_jax.index.base import Matrix
from pbr_jax.llm import LLM
from pbr_jax.methods.expand import parsing
from pbr_jax.methods.expand.llm_expand import MATERIAL, History, HistoryExpand, Model, Reply, encoded, sums_of
from pbr_jax.methods.expand.llm_expand import shown as shown_texts
from pbr_jax.options import IDLE
from pbr_jax.pipeline import Examples, ExpandSlot, Query, Tally
from pbr_jax.stages import language_model, vectors
from pbr_jax.stages.run import Run
from pbr_jax.text.encode import TextEncoder

UTTERANCES = f"""\
A user asks a question. Below are passages of the same user's earlier conversations; learn the user's voice
from them.
{MATERIAL}

Question: {{query}}

Write {{m}} things that this user might well say around the question. Keep the user's tone and style. Do not
only rephrase: vary what is stressed and what is told along with it. Each is longer than 25 words.
Reply with JSON and nothing else: {{{{"candidates": ["...", "..."]}}}}"""
"""The prompt for pseudo utterances: Zhang et al., "Personalize Before Retrieve" (PBR), 2025, Eq. 5."""

REASONING = f"""\
A user asks a question. Below are passages of the same user's earlier conversations.
{MATERIAL}

Question: {{query}}

Work towards the answer step by step, from what the passages tell about this user, and in the way this
user reasons and speaks."""
"""The prompt for pseudo reasoning: Zhang et al., "Personalize Before Retrieve" (PBR), 2025, Eq. 6."""

_FindAnchors = Callable[[Examples, np.ndarray], np.ndarray]
_Released = Callable[[str], Expansion]


@dataclass(frozen=True, kw_only=True)
class PBR(HistoryExpand):
    """PBR's expansion. Texts: the query, utterances and reasoning. Vector: their fusion with the user's
    anchor.

    The language model writes utterances and reasoning (PBR, Eq. 5 and 6).
    """

    method: Literal["pbr"] = "pbr"
    m: int = 5  # number of utterances. An answer with fewer than half of them usable counts as a failure
    # what replaces the utterances after a failure. query: the query; raw: the unparsed answer, as in the
    # released code
    on_failure: Literal["query", "raw"] = "query"
    # file of utterances and reasoning by question id. "": the language model writes them
    released: str = field(default="", metadata=IDLE)
    utterances: bool = True  # whether utterances are added to the query
    reasoning: bool = True  # whether the reasoning is added to the query
    # weights of utterances and reasoning in the fusion. cosine: Eq. 11 and 12; equal: 1
    weights: Literal["cosine", "equal"] = "cosine"
    # how the anchor of a user is computed. page_rank: PageRank over the user's documents; query: PageRank
    # with restarts near the query; mean: the mean of the documents; cluster: the cluster centre nearest to
    # the query; none: no anchor
    anchor: Literal["page_rank", "query", "mean", "cluster", "none"] = "page_rank"
    anchor_weight: float = 1.0  # weight of the anchor in the fusion
    clusters: int = 4  # anchor cluster: number of clusters of a user's documents
    theta: float = 0.75  # least cosine of two documents joined by an edge
    k2: int = 10  # number of edges from a document, including the edge to itself
    # probability of following an edge in PageRank (Eq. 9). 1: no restarts, as in the released code
    damping: float = 0.85
    iterations: int = 100  # maximum number of PageRank iterations
    temperature: float = 0.1  # anchor query: temperature of the restart distribution

    def check(self) -> None:
        super().check()
        for name in ("m", "k2", "iterations", "clusters"):
            self.at_least(name, 1)
        self.between("theta", 0, 1)
        self.between("damping", 0, 1)
        self.at_least("anchor_weight", 0)
        self.at_least("temperature", 1e-4)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        needs: dict[str, Node] = {"store": run.data, **vectors.searched(run)}
        if self.released:
            place = Path(self.released)
            needs["written"] = Value(
                "released", (place,), {}, expansions.read, identity=lambda: expansions.fingerprint(place)
            )
        elif self.utterances or self.reasoning:
            needs["llm"] = language_model.frozen(run)
        return needs

    @builds_nodes
    def check_run(self, run: Run) -> None:
        if self.released and (self.utterances or self.reasoning):
            written = expansions.read(Path(self.released))
            for example in run.data.value.examples():
                written(example.id)

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        llm: LLM | None = None,
        written: _Released | None = None,
    ) -> ExpandSlot:
        history = History(store, encoder, embeddings, tally)
        model = None if llm is None else Model(llm, tally, self.max_new_tokens)
        find_anchors = _anchors(self, history)

        def expand(examples: Examples) -> list[Query]:
            found = self._wanted(self._feedback(examples, history, model, written))
            with tally.timed("expand_encode"):
                queries = encoded(encoder, [example.query for example in examples], "query")
                utterances = _mean(encoder, [expansion.utterances for expansion in found])
                reasoning = _mean(encoder, [expansion.reasoning for expansion in found])
            with tally.timed("expand_anchor"):
                anchors = self.anchor_weight * find_anchors(examples, queries)
            parts = map(jnp.asarray, (queries, anchors, utterances, reasoning))
            fused = np.asarray(fuse(*parts, weighted=self.weights == "cosine"))
            return [
                Query((example.query, *expansion.utterances, *expansion.reasoning), vector)
                for example, expansion, vector in zip(examples, found, fused, strict=True)
            ]

        return expand

    # -- P-PRF -------------------------------------------------------------------------------------

    def _wanted(self, made: list[Expansion]) -> list[Expansion]:
        return [
            Expansion(e.utterances if self.utterances else (), e.reasoning if self.reasoning else ())
            for e in made
        ]

    def _feedback(
        self, examples: Examples, history: History, model: Model | None, written: _Released | None
    ) -> list[Expansion]:
        """Utterances and reasoning of each example: released ones, or the language model's."""
        if written is not None and (self.utterances or self.reasoning):
            return [written(example.id) for example in examples]
        return [Expansion() for _ in examples] if model is None else self._prf(examples, history, model)

    def _prf(self, examples: Examples, history: History, model: Model) -> list[Expansion]:
        """From the `k1` documents of the user nearest to the query (Eq. 4 to 6)."""
        rankings = history.look(examples, [Query((example.query,)) for example in examples], self.k1)
        shown = [
            shown_texts([candidate.document for candidate in r], self.history_tokens, model.llm)
            for r in rankings
        ]

        def replies(template: str) -> list[Reply]:
            # Without numbers, which a model that is to list texts would continue.
            return model.ask(
                [
                    template.format(query=example.query, documents="\n\n".join(texts), m=self.m)
                    for example, texts in zip(examples, shown, strict=True)
                ]
            )

        said = thought = queries = [(example.query,) for example in examples]
        if self.utterances:
            found = replies(UTTERANCES)
            read = [self._utterances(reply, texts) for reply, texts in zip(found, shown, strict=True)]
            usable = model.counted("utterances", examples, read)
            said = [words or self._instead(r, query) for words, r, query in zip(usable, found, queries)]
        if self.reasoning:
            read = [parsing.passage(reply.text) for reply in replies(REASONING)]
            reasons = model.counted("reasoning", examples, read)
            thought = [(text,) if text else query for text, query in zip(reasons, queries)]
        return [Expansion(*parts) for parts in zip(said, thought, strict=True)]

    def _utterances(self, reply: Reply, shown: Sequence[str]) -> tuple[str, ...] | None:
        """What a reply says that is no copy of the texts shown; None for less than half of what was asked."""
        listed = parsing.strings(reply.text, cut=reply.cut) or ()
        own = [text for text in listed if not parsing.is_copy(text, shown)]
        return tuple(own[: self.m]) if len(own) >= self.m / 2 else None

    def _instead(self, reply: Reply, query: tuple[str]) -> tuple[str]:
        """What stands in for utterances that a reply lacks."""
        raw = parsing.passage(reply.text) if self.on_failure == "raw" else None
        return (raw,) if raw else query


def _mean(encoder: TextEncoder, texts: list[tuple[str, ...]]) -> np.ndarray:
    """Mean embedding [n d] of each list of texts (Eq. 5); 0 for an empty one."""
    sums, counts = sums_of(encoder, texts, "query")
    return sums / np.maximum(counts, 1)


# -- P-Anchor --------------------------------------------------------------------------------------


def _anchors(o: PBR, history: History) -> _FindAnchors:
    """The anchor of each example, of the documents that it sees; some ways look at its query too."""
    store, vectors = history.store, history.embeddings
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


# -- fusion -----------------------------------------------------------------------------------------


def fuse(
    queries: Float[Array, "b d"],
    anchors: Float[Array, "b d"],
    utterances: Float[Array, "b d"],
    reasoning: Float[Array, "b d"],
    *,
    weighted: bool = True,
) -> Float[Array, "b d"]:
    """q* = q + c + w1 f + w2 r, where w = 1 + cos((q + c) / 2, ·) (PBR, Eq. 11 to 14).

    Missing parts are rows of zeros. If not `weighted`, w1 = w2 = 1.
    """
    centre = (queries + anchors) / 2
    shift = sum(
        (1 + similarity(centre, part) if weighted else jnp.ones(len(part)))[:, None] * part
        for part in (utterances, reasoning)
    )
    return queries + anchors + shift


def similarity(a: Float[Array, "b d"], b: Float[Array, "b d"]) -> Float[Array, " b"]:
    """The cosine of each pair of rows; 0 if one of them is a zero vector."""
    lengths = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
    return jnp.einsum("bd,bd->b", a, b, precision="highest") / jnp.where(lengths > 0, lengths, 1)
