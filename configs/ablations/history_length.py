"""How long must the own history be before other users' documents stop helping?

Histories are cut to 0, 1, 2, 4 or 8 documents, or kept whole. `own` shows own documents alone. `filled_*`
shows the same, and fills the remaining positions of the prompt from other users: the nearest by the trained
encoder, the nearest by means, or random ones. `others` shows only documents of the nearest users. `auto`
fills positions if that helped training users: its method, `backfilled`, is in this file. Nothing is decoded,
so rows are compared by `target_nll`.

pbr-jax sweep configs/ablations/history_length.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.config import Config, Overrides
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.significance import paired_difference
from pbr_jax.graph import Stage
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.options import Eval, Select, TrainingSplit
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import Questions, rankings
from pbr_jax.stages.run import metered, write_tally
from pbr_jax.system import System

LENGTHS = (0, 1, 2, 4, 8, None)
ROWS: dict[str, Overrides] = {
    "own": {"neighbours.method": "self"},
    "filled_contrastive": {"neighbours.method": "contrastive", "neighbours.m": 4, "select.own": 4},
    "filled_mean": {"neighbours.method": "mean", "neighbours.m": 4, "select.own": 4},
    "filled_random": {"neighbours.method": "random", "neighbours.m": 4, "select.own": 4},
    "others": {"neighbours.method": "mean", "neighbours.m": 4, "select.own": 0},
    "auto": {"neighbours.method": "mean", "neighbours.m": 4, "select.method": "backfilled"},
}


class Gain(NamedTuple):
    """What filling up did with `own` own documents: the mean difference of target_nll, nats per token, over
    `questions` training questions with its 95 % interval over their users; below zero it helped."""

    own: int
    questions: int
    difference: float
    low: float
    high: float

    @property
    def helps(self) -> bool:
        """Whether it surely did."""
        return self.high < 0


@dataclass(frozen=True, kw_only=True)
class Backfilled(Select):
    """Own documents first, and others' in the free places where this helped training users.

    Training questions are asked with n of their user's own candidates, drawn by lot, and the other places of
    the prompt empty or filled with others' best; n from none to k - 1. Others' documents are shown only at
    those n where the true answers became more probable.
    """

    training_split: ClassVar[TrainingSplit] = "needed"

    method: Literal["backfilled"] = "backfilled"
    k: int = 4  # number of documents in the prompt

    def needs(self, run):
        run.learns_from_others("select.method backfilled")
        run.config.llm.check_scoring("select.method backfilled")
        if not run.config.neighbours.others:
            raise UserError(
                "select.method backfilled chooses between own and other users' documents, and there are no "
                "others; set neighbours.method and neighbours.m, or take select.method top_k"
            )
        seed = run.config.seed
        questions = Questions(training=True, sample=run.config.feedback.limit or 120, seed=seed)
        needs = {
            "store": run.data,
            "ranked": rankings(run, questions, "rank_own_share", select=select.TopK(k=self.k)),
            "write": language_model.training_writer(run),
            "llm": generator(run),
        }
        return {"gains": Stage("backfill", (questions, self.k, seed), needs, measure, load)}

    def slot(self, tally, *, gains):
        top_k = select.TopK(k=self.k).slot(tally)

        def chosen(example, ranking):
            own = [c for c in ranking if c.document.user_id == example.user_id]
            if len(own) >= self.k or not gains[len(own)].helps:
                return own
            others = [c for c in ranking if c.document.user_id != example.user_id]
            first = {c.row for c in [*own, *others[: self.k - len(own)]]}
            return sorted(ranking, key=lambda c: c.row not in first)

        def backfilled(examples, queries, rankings):
            ranked = top_k(examples, queries, rankings)
            return [chosen(*pair) for pair in zip(examples, ranked, strict=True)]

        return backfilled


def measure(folder, questions, k, seed, *, ranked, **parts):
    """Writes the gains at all numbers of own documents."""
    system = System(parts)
    examples = list(questions.read(system.store))
    pairs = list(zip(examples, ranked.read(system.store, examples), strict=True))
    with metered(folder):
        gains = [gain(n, k, pairs, system, seed) for n in range(k)]
    write_tally(system.tally, folder)
    (folder / "gains.json").write_text(json.dumps(gains))


def load(folder) -> list[Gain]:
    return [Gain(*values) for values in json.loads((folder / "gains.json").read_text())]


def gain(n, k, pairs, system, seed) -> Gain:
    """What others' documents are worth beside n own ones, over the questions that have both."""
    users, examples, alone, filled = [], [], [], []
    for example, ranking in pairs:
        own = [i for i, c in enumerate(ranking) if c.document.user_id == example.user_id]
        others = [i for i, c in enumerate(ranking) if c.document.user_id != example.user_id]
        if len(own) < n or not others or example.target is None:
            continue
        draw = np.random.default_rng([seed, 5, n, len(users)])
        first = [own[i] for i in sorted(draw.choice(len(own), n, replace=False).tolist())]
        users.append(example.user_id)
        examples.append(example)
        alone.append([ranking[i] for i in first])
        filled.append([ranking[i] for i in sorted(first + others[: k - n])])
    if not users:
        return Gain(n, 0, 0.0, 0.0, 0.0)
    one, two = (
        np.array([-score.mean for _, score in system.score(examples, shown) if score is not None])[:, None]
        for shown in (filled, alone)
    )
    difference = paired_difference(one, two, users, plain_mean, seed=seed)
    return Gain(n, len(users), difference.value, difference.low, difference.high)


def get_config() -> Config:
    return Config(
        collaboration="text",
        retrieve=retrieve.Dense(k=4),
        select=select.TopK(k=4),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    return ({"system": name, **row, "limit_history": n} for name, row in ROWS.items() for n in LENGTHS)
