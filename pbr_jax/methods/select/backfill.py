"""Where a short own history is worth filling up with other users' documents: learned, not assumed.

Training questions are asked with n of their user's own candidates, drawn by lot, and the other places of the
prompt empty or filled with others' best; n from none to k - 1. Others' documents are shown only at those n
where the true answers became more probable.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base.files import parse_json, write_text
from pbr_jax.base.types import Example, UserError
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.significance import paired_difference
from pbr_jax.graph import Stage, builds_nodes
from pbr_jax.options import Select
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import Questions, Rankings, rankings
from pbr_jax.stages.run import Run, metered, write_tally
from pbr_jax.system import System

_QUESTIONS = 120  # training questions that are asked where feedback.limit does not say how many


@dataclass(frozen=True)
class Gain:
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


Curve = list[Gain]


@builds_nodes
def curve(run: Run, scored: Select, k: int | None) -> Stage:
    """Gains from filling up to k documents, at every number of own ones, with this selection's scores."""
    run.learns_from_others("select.own auto")
    run.config.llm.check_scoring("select.own auto")
    if not run.config.neighbours.others:
        raise UserError(
            "select.own auto chooses between own and other users' documents, and there are no others; set "
            "neighbours.method and neighbours.m, or take select.own away"
        )
    limit = run.config.feedback.limit or _QUESTIONS
    asked = Questions(training=True, sample=limit, seed=run.config.seed)
    needs = {
        "store": run.data,
        "ranked": rankings(run, asked, "rank_own_share", select=scored),
        "write": language_model.training_writer(run),
        "llm": generator(run),
    }
    return Stage("backfill", (asked, k, run.config.seed), needs, _measure, _read)


def _measure(
    folder: Path,
    asked: Questions,
    k: int,
    seed: int,
    *,
    ranked: Rankings,
    **parts: Any,
) -> None:
    system = System(parts)
    examples = list(asked.read(system.store))
    pairs = list(zip(examples, ranked.read(system.store, examples), strict=True))
    with metered(folder):
        backfill_gains = [_gain(n, k, pairs, system, seed) for n in range(k)]
    write_tally(system.tally, folder)
    write_text(folder / "gains.json", json.dumps([asdict(gain) for gain in backfill_gains], indent=2))


def _read(folder: Path) -> Curve:
    return [Gain(**gain) for gain in parse_json((folder / "gains.json").read_bytes())]


def _gain(n: int, k: int, pairs: Sequence[tuple[Example, Ranking]], system: System, seed: int) -> Gain:
    """What others' documents are worth beside n own ones, where there are both."""
    users, alone, filled = [], [], []
    for example, ranking in pairs:
        own = [i for i, c in enumerate(ranking) if c.document.user_id == example.user_id]
        others = [i for i, c in enumerate(ranking) if c.document.user_id != example.user_id]
        if len(own) < n or not others or example.target is None:
            continue
        draw = np.random.default_rng([seed, 5, n, len(users)])
        kept = sorted(draw.choice(len(own), n, replace=False).tolist())
        first = [own[i] for i in kept]
        users.append(example.user_id)
        alone.append((example, [ranking[i] for i in first]))
        filled.append((example, [ranking[i] for i in sorted(first + others[: k - n])]))
    if not users:
        return Gain(n, 0, 0.0, 0.0, 0.0)
    one, two = (_nll(rows, system) for rows in (filled, alone))
    found = paired_difference(one[:, None], two[:, None], users, plain_mean, seed=seed)
    return Gain(n, len(users), found.value, found.low, found.high)


def _nll(rows: Sequence[tuple[Example, Ranking]], system: System) -> np.ndarray:
    scores = system.score([example for example, _ in rows], [ranking for _, ranking in rows])
    return np.array([-score.mean for _, score in scores if score is not None])
