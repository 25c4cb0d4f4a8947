"""A selection that learns by trial which documents to show: a small policy, its loss and its controls.

The policy scores a question's candidates from three numbers: the retriever's score, the rank and the length.
Training draws sets of `k` candidates (Plackett-Luce). The reward of a set is the mean value of its documents,
which is how likely the language model makes the user's answer with each of them. REINFORCE raises the chance
of sets with more reward than the question's other draws.

    pbr-jax sweep examples/methods/learned_policy.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
    pbr-jax report DIR --reference retrieved

Two rows are controls: `shuffled` learns from values that are dealt to other candidates of the same question,
and `untrained` takes no step. What the policy learns of documents, neither of them has.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax import losses
from pbr_jax.base.types import UserError
from pbr_jax.config import Config
from pbr_jax.graph import Stage
from pbr_jax.methods import generate, retrieve
from pbr_jax.methods.select import TopK
from pbr_jax.methods.select.by_score import ByScore
from pbr_jax.options import Feedback, Optimizer, Training
from pbr_jax.stages import feedback
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.trained import check_training, load_saved, save_fitted


def training():
    return Training(
        epochs=20, batch_size=16, selection=0.0, optimizer=Optimizer(name="adam", learning_rate=0.05)
    )


@dataclass(frozen=True, kw_only=True)
class LearnedPolicy(ByScore):
    """Candidates by the logits of a linear policy, which draws of sets have taught."""

    training_split: ClassVar = "needed"  # without training questions the run stops

    method: Literal["learned_policy"] = "learned_policy"
    k: int | None = 4
    rollouts: int = 8  # sets drawn for each question in each step
    training: Training = field(default_factory=training)

    def check(self):
        super().check()
        self.at_least("rollouts", 2)
        if self.k is None:
            raise UserError("select.k is none, and sets of k documents are drawn; set select.k to a number")

    def needs(self, run):
        lessons = feedback.feedback(  # the value of each candidate; refused where collaboration is none
            run,
            "learned_policy",
            expand=run.config.expand,
            retrieve=run.config.retrieve,
            select=TopK(),  # not this method: it would need itself
            generate=generate.Ipa.like(run),
        )
        inputs = {"store": run.data, "ranked": lessons.needs["ranked"], "lessons": lessons}
        options = (self, feedback.questions(run), run.config.seed)
        check = partial(check_training, self.training)
        return {"params": Stage("learned_policy", options, inputs, train, load_saved, check=check)}

    def scores(self, batch, tally, *, params):
        """New scores [n] of the n candidates of each question."""
        theta = np.asarray(params["theta"])
        return [features(ranking) @ theta for ranking in batch.rankings]


def features(ranking):
    """What the policy knows of n candidates, float32 [n 3], each column with mean 0 and deviation 1."""
    columns = [
        [candidate.score for candidate in ranking],
        [-float(place) for place in range(len(ranking))],
        [float(len(candidate.document.text)) for candidate in ranking],
    ]
    return np.stack([standardised(column) for column in columns], axis=-1).astype(np.float32)


def train(folder, options, questions, seed, *, store, ranked, lessons):
    """Writes the trained parameters. `fit` goes on from its checkpoints after a kill."""
    from pbr_jax.train import TrainingTask, fit

    examples = list(questions.read(store))
    inputs, values = [], []
    for ranking, judged in zip(ranked.read(store, examples), lessons.read(examples), strict=True):
        place = {candidate.row: i for i, candidate in enumerate(ranking)}
        known = [place[row] for row in judged.rows.tolist()]  # candidates that hold the target are not judged
        if len(known) > 1:
            inputs.append(features(ranking)[known])
            values.append(judged.values)
    if not inputs:
        raise UserError("no training question has two candidates to choose from; raise retrieve.k")
    width = max(map(len, values))

    def batch(rows):
        """Arrays of one batch: features [b n 3], values [b n], present [b n], where [b]."""

        def padded(arrays):
            some = (arrays[i] for i in rows.indices)
            return np.stack([np.pad(x, [(0, width - len(x))] + [(0, 0)] * (x.ndim - 1)) for x in some])

        present = padded([np.ones(len(each), bool) for each in values])
        return {"features": padded(inputs), "values": padded(values), "present": present, "where": rows.where}

    task = TrainingTask(
        lambda: {"theta": jnp.zeros(3)},
        partial(loss, k=options.k, rollouts=options.rollouts),
        len(inputs),
        batch,
    )
    save_fitted(fit(task, options.training, folder, seed=seed), folder, "learned_policy")


def loss(params, batch, key, *, k, rollouts):
    """The mean REINFORCE loss of a batch, a scalar. `key` draws the sets."""
    logits = batch["features"] @ params["theta"]  # [b n]
    drawn = jax.lax.stop_gradient(logits)
    sets = losses.sample_plackett_luce(key, drawn, k=k, rollouts=rollouts, where=batch["present"])  # [b m k]
    taken = jnp.take_along_axis(batch["values"][:, None, :], jnp.maximum(sets, 0), axis=-1)
    there = sets >= 0  # a question with fewer candidates than k has places without one
    rewards = jnp.where(there, taken, 0).sum(axis=-1) / jnp.maximum(there.sum(axis=-1), 1)  # [b m]
    chances = losses.plackett_luce_log_prob(logits, sets, where=batch["present"])
    each = losses.reinforce(chances, losses.leave_one_out(rewards)).mean(axis=-1)  # [b]
    return losses.masked_mean(each, batch["where"])


def get_config():
    return Config(
        system="learned_policy",
        collaboration="signals",
        retrieve=retrieve.BM25(k=12),
        select=LearnedPolicy(k=4),
        feedback=Feedback(metric="likelihood"),
    )


def sweep():
    yield {"system": "learned_policy"}
    yield {"system": "shuffled", "feedback.shuffle": True}
    yield {"system": "untrained", "select.training.epochs": 0}
    yield {"system": "retrieved", "select": TopK(k=4)}
