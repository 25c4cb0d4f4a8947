"""The documents after which the user's true answer is most probable: a ceiling, never a system.

Each candidate stands alone in the prompt, and the language model scores the target behind it, so the choice
reads what is to be predicted ("oracle singles"). It tells how much a better choice could gain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.pipeline import Examples, PromptWriter, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.run import Run
from pbr_jax.system import System


@dataclass(frozen=True, kw_only=True)
class Oracle(ByScore):
    """Candidates by log p(target | prompt with this candidate alone), in nats."""

    method: Literal["oracle"] = "oracle"

    @property
    def ceiling(self) -> bool:
        return True

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        run.config.llm.check_scoring("select.method oracle")
        model = {"llm": generator(run), "write": language_model.writer(run)}
        return {**model, **self.sharing(run)}

    @builds_nodes
    def check_run(self, run: Run) -> None:
        store: Store = run.data.value
        for example in store.examples():
            _known(example)

    def slot(
        self, tally: Tally, *, llm: LLM, write: PromptWriter, backfill_gains: Curve | None = None
    ) -> SelectSlot:
        system = System({"llm": llm, "write": write})

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            singles = [(e, [c]) for e, ranking in zip(examples, rankings, strict=True) for c in ranking]
            with tally.timed("select_llm"):
                scored = system.score([_known(e) for e, _ in singles], [single for _, single in singles])
            scores = [score for _, score in scored if score is not None]
            tally.counts.update(
                select_calls=len(scores),
                select_prompt_tokens=sum(llm.num_tokens(prompt.messages) for prompt, _ in scored),
                select_answer_tokens=sum(score.tokens for score in scores),
            )
            found = iter(scores)
            return [np.array([next(found).total for _ in ranking]) for ranking in rankings]

        return by_score(self, score, backfill_gains)


def _known(example: Example) -> Example:
    """The example, whose target is known."""
    if example.target is None:
        raise UserError(
            f"select.method oracle reads the answers, and question {example.id!r} has none; take a split "
            "with targets, or another method"
        )
    return example
