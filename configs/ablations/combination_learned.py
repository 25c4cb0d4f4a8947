"""What the systems' learned parts add to the memory retriever (configs/memory.py).

Policies choose from its first 12 sessions; other rows change what searches. Everything is learned from the
evidence of other conversations' questions: on LoCoMo each conversation is left out in turn.

- "purple, ...": a linear policy weighs what the retriever's parts say of a session, from the order of memory.
  "gains" raises the probability that each choice adds evidence, "reinforce" the expected recall of the set.
- "luf, ...": half of the weight of dense passages searches with a linear map of the question's vector. At the
  start it is that of memory. "luf alone" has the map alone, and "dense passages" are how it begins.
- "clusters": dense passages are those of the two best clusters (ClusterRAG).
- "anchor": the question's vector has the user's anchor added (PBR), which needs the question with its names.
- "first ten, best order" reads the evidence.

pbr-jax sweep ablations/combination_learned --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --generate.method none --eval.likelihood off --out DIR
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import logsumexp

from pbr_jax.base.draws import generator
from pbr_jax.base.files import parse_json, write_text
from pbr_jax.config import Config, Overrides, found, load
from pbr_jax.graph import Stage
from pbr_jax.losses import leave_one_out, plackett_luce_log_prob, reinforce, sample_plackett_luce
from pbr_jax.methods import retrieve, select
from pbr_jax.methods.select.by_score import ByScore
from pbr_jax.stages import feedback
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.rankings import Questions, drop_leaks, rankings
from pbr_jax.stages.scores import standardised

# -- a policy over sets of evidence (PURPLE) ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LinearPolicy(ByScore):
    """Candidates by their standardised scores and a learned weighted sum of what is known of each."""

    training_split: ClassVar = "needed"

    method: Literal["linear_policy"] = "linear_policy"
    k: int | None = 5  # size of the sets that are learned from
    loss: Literal["gains", "reinforce"] = "gains"
    features: Literal["scores", "random"] = "scores"  # random: as many random numbers, a control
    rollouts: int = 16  # sets of each question; for gains one of them is the policy's own choice
    epochs: int = 80

    def needs(self, run):
        run.learns_from_others("select.method linear_policy")
        asked = Questions(training=True)
        ranked = rankings(run, asked, "rank_for_policy", reported=True, select=select.TopK())
        options = (self, asked, run.config.seed, *feedback.shuffling(run))
        return {"policy": Stage("policy", options, {"store": run.data, "ranked": ranked}, train, read)}

    def check_run(self, run):
        Questions(training=True).check_known(run.data.value, "relevant", "select.method linear_policy")

    def scores(self, batch, tally, *, policy):
        parts, theta = policy["parts"], np.array(policy["theta"])
        return [
            standardised([candidate.score for candidate in ranking])
            + features(self, example, ranking, parts) @ theta
            for example, ranking in zip(batch.examples, batch.rankings, strict=True)
        ]


def features(options, example, ranking, parts):
    """The score, the place and the score by each part of a question's candidates [n f], standardised."""
    if options.features == "random":
        return generator("features", example.user_id, example.id).normal(size=(len(ranking), 2 + len(parts)))
    columns = [[candidate.score for candidate in ranking], [*range(0, -len(ranking), -1)]]
    columns += [[candidate.scores[part] for candidate in ranking] for part in parts]
    return standardised(columns).T


def train(folder, options, asked, seed, shuffle=None, *, store, ranked):
    """Writes the weights. Without a question that names evidence they are 0."""
    examples = list(asked.read(store))
    found = zip(examples, drop_leaks(store, examples, ranked.read(store, examples)), strict=True)
    some = [(example, ranking) for example, ranking in found if ranking and example.relevant]
    parts = sorted(some[0][1][0].scores)
    most = max(len(ranking) for _, ranking in some)
    groups = [[*dict.fromkeys(map(frozenset, example.relevant))] for example, _ in some]
    pieces = np.array([*map(len, groups)])
    inputs = {
        "known": np.zeros((len(some), most, 2 + len(parts)), np.float32),
        "start": np.zeros((len(some), most), np.float32),
        "there": np.zeros((len(some), most), bool),
        "holds": np.zeros((len(some), most, pieces.max()), bool),
        "pieces": pieces.astype(np.float32),
    }
    for row, ((example, ranking), of) in enumerate(zip(some, groups, strict=True)):
        count = len(ranking)
        inputs["known"][row, :count] = features(options, example, ranking, parts)
        inputs["start"][row, :count] = standardised([candidate.score for candidate in ranking])
        inputs["there"][row, :count] = True
        dealt = range(count) if shuffle is None else feedback.shuffled(example, count, shuffle)
        for place, other in enumerate(dealt):
            document = ranking[other].document
            if is_relevant(example, document):
                inputs["holds"][row, place, : len(of)] = [document.whole in group for group in of]
    theta, optimizer = jnp.zeros(2 + len(parts)), optax.adamw(0.03, weight_decay=0.001)
    state, slope = optimizer.init(theta), jax.jit(jax.grad(partial(loss, options)))
    for key in jax.random.split(jax.random.key(seed), options.epochs):
        steps, state = optimizer.update(slope(theta, inputs, key), state, theta)
        theta = optax.apply_updates(theta, steps)
    write_text(folder / "policy.json", json.dumps({"parts": parts, "theta": np.asarray(theta).tolist()}))


def read(folder):
    return parse_json((folder / "policy.json").read_bytes())


def loss(options, theta, inputs, key):
    there, holds = inputs["there"], inputs["holds"]
    logits = jnp.where(there, inputs["start"] + inputs["known"] @ theta, -1e9)
    drawn = options.rollouts - (options.loss == "gains")
    sets = sample_plackett_luce(key, logits, k=options.k, rollouts=drawn, where=there)
    if options.loss == "reinforce":
        shown = jax.nn.one_hot(sets, there.shape[1]).any(axis=-2)  # a set's candidates [q m n]
        recall = (jnp.einsum("qmn,qng->qmg", shown, holds) > 0).sum(-1) / inputs["pieces"][:, None]
        log_probs = plackett_luce_log_prob(logits, sets, where=there)
        return reinforce(log_probs, leave_one_out(recall)).mean()
    own = jax.lax.top_k(logits, options.k)[1][:, None]
    return missed_gains(logits, jnp.concatenate([own, sets], axis=1), there, holds).mean()


def missed_gains(logits, sets, there, holds):
    """Minus the log-probability that each choice along an order adds a piece that the set still lacks [q m].

    A step to which nothing is left to add counts 0. Only the sets on the way are drawn.
    """
    chosen = jax.nn.one_hot(sets, logits.shape[-1], dtype=bool)  # of -1: none
    before = (jnp.cumsum(chosen, axis=-2) - chosen) > 0
    left = there[:, None, None] & ~before
    covered = jnp.einsum("qmkn,qng->qmkg", before, holds) > 0
    adds = (holds[:, None, None] & ~covered[..., None, :]).any(axis=-1) & left
    logits = logits[:, None, None]
    every, adding = (logsumexp(jnp.where(some, logits, -1e9), axis=-1) for some in (left, adds))
    return jnp.where(adds.any(axis=-1), every - adding, 0).sum(axis=-1)


# -- other parts --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Opened(retrieve.TwoStage):
    """Passages of the best clusters alone, however few these hold."""

    method: Literal["opened"] = "opened"  # type: ignore[assignment]
    k: int = 10
    inside: Literal["pooled"] = "pooled"

    def _opened(self, query, searched, tokens):
        return retrieve.TwoStage._opened(replace(self, k=1), query, searched, tokens)


@dataclass(frozen=True, kw_only=True)
class BestOrder(ByScore):
    """Candidates that hold evidence first: a ceiling."""

    method: Literal["best_order"] = "best_order"

    @property
    def ceiling(self):
        return True

    def scores(self, batch, tally):
        pairs = zip(batch.examples, batch.rankings, strict=True)
        return [np.array([is_relevant(e, one.document) for one in ranking], float) for e, ranking in pairs]


SEEDS = 3
_MEMORY: Overrides = {
    "retrieve.of": ["bm25", "bm25", "dense"],
    "retrieve.weights": (1.0, 1.0, 2.0),
    "select.method": "top_k",
}
_KEPT: Overrides = {"retrieve.of.dense.names": "keep"}
_GAINS: Overrides = {"select.loss": "gains", "select.rollouts": 2}
_LUF: Overrides = {  # another method begins with parts of its own, so theirs are said again
    "retrieve.method": "luf",
    "retrieve.of": ["bm25", "bm25", "dense"],
    "retrieve.of.bm25.over": "documents",
    **{f"retrieve.of.{part}.analyser": "stem" for part in ("bm25", "bm25_2")},
    **{f"retrieve.of.{part}.question_words": "out" for part in ("bm25", "bm25_2")},
    "retrieve.of.dense.names": "i",
    "select.method": "top_k",
    "retrieve.k": 10,
    "retrieve.names": "i",
    "retrieve.moves": "map",
    "retrieve.labels.kind": "gold",
    "collaboration": "text",
}
_ALONE: Overrides = {
    **{name: value for name, value in _LUF.items() if not name.startswith("retrieve.of")},
    "retrieve.of": [],
}
_LUF_KEPT: Overrides = {**_LUF, **_KEPT, "retrieve.names": "keep"}
_DENSE: Overrides = {"retrieve.method": "dense", "retrieve.k": 10, "select.method": "top_k"}
_ANCHOR: Overrides = {"expand.method": "pbr", "expand.utterances": False, "expand.reasoning": False}
FIXED: dict[str, Overrides] = {
    "memory": _MEMORY,
    "memory, names kept": {**_MEMORY, **_KEPT},
    "clusters": {**_MEMORY, "retrieve.of": ["bm25", "bm25", "opened"], "retrieve.of.opened.names": "i"},
    "clusters, names kept": {**_MEMORY, "retrieve.of": ["bm25", "bm25", "opened"]},
    "anchor, names kept": {**_MEMORY, **_KEPT, **_ANCHOR},
    "dense passages": {**_DENSE, "retrieve.names": "i"},
    "dense passages, names kept": _DENSE,
    "first ten, best order": {**_MEMORY, "retrieve.k": 10, "select.method": "best_order"},
}
LEARNED: dict[str, Overrides] = {
    "purple, gains": _GAINS,
    "purple, reinforce": {"select.loss": "reinforce"},
    "luf": _LUF,
    "luf, names kept": _LUF_KEPT,
}
ONCE: dict[str, Overrides] = {  # controls, and what explains the others: with one seed
    "purple, gains, names kept": {**_GAINS, **_KEPT, "retrieve.of.dense_2.names": "keep"},
    "purple, gains, random features": {**_GAINS, "select.features": "random"},
    "purple, gains, shuffled evidence": {**_GAINS, "feedback.shuffle": True},
    "luf, shuffled labels": {**_LUF, "retrieve.labels.kind": "shuffled"},
    "luf alone": _ALONE,
    "luf alone, names kept": {**_ALONE, "retrieve.names": "keep"},
}


def get_config() -> Config:
    memory = load(found("memory")).config
    assert isinstance(memory.retrieve, retrieve.Fused)
    terms = retrieve.BM25(analyser="stem", question_words="out", over="documents", k1=0.0)
    known = (terms, retrieve.Dense(names="out"), retrieve.Dense(), retrieve.Recency())
    weights = memory.retrieve.weights + (0.0,) * len(known)  # these say something and change no ranking
    return replace(
        memory,
        collaboration="signals",  # it learns from other conversations' questions
        retrieve=replace(memory.retrieve, k=12, of=memory.retrieve.of + known, weights=weights),
        select=LinearPolicy(),
    )


def sweep(config: Config) -> Iterator[Overrides]:
    """With a training split, policies learn from that one, and LUF's map, which learns from a stream, is left
    out: `pbr-jax export` gives it to other benchmarks."""
    folds = not config.benchmark.training_name
    for name, row in FIXED.items():
        yield {"system": name, **row}
    for name, row in {**LEARNED, **ONCE}.items():
        learner = row.get("retrieve.method") == "luf"
        protocol = "cross_users" if learner else "cross_units" if folds else "prequential"
        for seed in range(SEEDS if name in LEARNED else 1) if folds or not learner else ():
            yield {"system": name, "seed": seed, "stream.protocol": protocol, **row}
