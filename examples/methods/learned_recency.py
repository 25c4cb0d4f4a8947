"""A preference for newer documents whose strength is learned from the language model's feedback.

A question's candidates i have standardised scores z_i and ages a_i in days:

    score(i) = scale * z_i + weight * 2^(-a_i / half_life)

The three numbers are trained so that the scores predict what the language model makes of each candidate.

pbr-jax run examples/methods/learned_recency.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from pbr_jax.config import Config
from pbr_jax.graph import Stage
from pbr_jax.methods import generate, retrieve
from pbr_jax.methods.select.behind import Behind, ages
from pbr_jax.methods.select.by_score import by_score
from pbr_jax.options import Distillation, Feedback, Optimizer, Training
from pbr_jax.stages import feedback
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.trained import check_training, load_saved, save_fitted


def training():
    return Training(epochs=10, batch_size=16, optimizer=Optimizer(name="adam", learning_rate=0.05))


@dataclass(frozen=True, kw_only=True)
class LearnedRecency(Behind):
    """Another selection's scores plus a learned preference for newer documents."""

    training_split: ClassVar = "needed"  # without training questions the run stops

    method: Literal["learned_recency"] = "learned_recency"
    distillation: Distillation = field(default_factory=lambda: Distillation(loss="forward_kl"))
    training: Training = field(default_factory=training)

    def learns(self):
        return "needed"  # whatever the selection before it needs

    def needs(self, run):
        lessons = feedback.feedback(  # refused where collaboration is none
            run,
            "recency",
            expand=run.config.expand,
            retrieve=run.config.retrieve,
            select=self.first,
            generate=generate.Ipa.like(run),
        )
        inputs = {"store": run.data, "ranked": lessons.needs["ranked"], "lessons": lessons}
        options = (self, feedback.questions(run), run.config.seed, feedback.least_range(run))
        check = partial(check_training, self.training)
        params = Stage("learned_recency", options, inputs, train, load_saved, check=check)
        return {**super().needs(run), "store": run.data, "params": params}

    def reordered(self, example, ranking, *, store, params):
        batch = {name: value[None] for name, value in features(store, example, ranking).items()}
        return by_score(ranking, np.asarray(scores(params, batch))[0])


def features(store, example, ranking):
    """The inputs of `scores` for a question's candidates. Undated documents count as very old."""
    days = ages(store, example, ranking)
    relevance = standardised([candidate.score for candidate in ranking])
    return {
        "relevance": relevance.astype(np.float32),
        "days": np.nan_to_num(days, nan=1e6).astype(np.float32),
    }


def scores(params, batch, key=None):
    scale, weight, log_half_life = params["prior"]
    return scale * batch["relevance"] + weight * jnp.exp2(-batch["days"] / jnp.exp(log_half_life))


def train(folder, options, questions, seed, least, *, store, ranked, lessons):
    """Writes the trained parameters. `distill` goes on from its checkpoints after a kill."""
    from pbr_jax.train.distillation import Scorer, distill

    examples = list(questions.read(store))
    judged = lessons.read(examples)
    inputs = []
    for example, ranking, values in zip(examples, ranked.read(store, examples), judged, strict=True):
        candidates = {
            candidate.row: candidate for candidate in ranking
        }  # those that hold the target are not judged
        inputs.append(features(store, example, [candidates[row] for row in values.rows.tolist()]))
    width = max(len(values.rows) for values in judged)

    def arrays(places):
        def padded(name):
            return np.stack([np.pad(inputs[i][name], (0, width - len(inputs[i][name]))) for i in places])

        return {name: padded(name) for name in ("relevance", "days")}

    def start():
        return {"prior": jnp.array([1.0, 0.1, np.log(30)])}  # scale, weight, log of the half-life

    how = (options.distillation, options.training, folder)
    users = [example.user_id for example in examples]
    fitted = distill(Scorer(start, arrays, scores), judged, *how, seed=seed, user_ids=users, least=least)
    save_fitted(fitted, folder, "learned_recency")


def get_config():
    return Config(
        system="learned_recency",
        collaboration="signals",
        retrieve=retrieve.BM25(k=20),
        select=LearnedRecency(k=4),
        feedback=Feedback(metric="likelihood"),
    )
