"""Selections that read what is to be predicted: ceilings, never systems. They tell how much a better choice
of documents could gain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM
from pbr_jax.methods.select.by_score import Batch, ByScore
from pbr_jax.options import Select
from pbr_jax.pipeline import Examples, PromptWriter, Queries, Ranking, SelectSlot, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import candidates
from pbr_jax.system import System


@dataclass(frozen=True, kw_only=True)
class Oracle(ByScore):
    """Candidates by log p(target | prompt with this candidate alone), in nats ("oracle singles"). Those of a
    question that has evidence and no target keep their order."""

    method: Literal["oracle"] = "oracle"

    @property
    def ceiling(self) -> bool:
        return True

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        run.config.llm.check_scoring("select.method oracle")
        return {"llm": generator(run), "write": language_model.writer(run)}

    @builds_nodes
    def check_run(self, run: Run) -> None:
        examples = list(run.data.value.examples())
        some = any(example.target is not None for example in examples)
        for example in examples:
            _check_target(example, evidence=some)

    def scores(self, batch: Batch, tally: Tally, *, llm: LLM, write: PromptWriter) -> list[np.ndarray]:
        singles = [
            (e, [c]) for e, ranking in zip(batch.examples, batch.rankings, strict=True) for c in ranking
        ]
        for example, _ in singles:
            _check_target(example, evidence=True)
        with tally.timed("select_llm"):
            system = System({"llm": llm, "write": write})
            scored = system.score([e for e, _ in singles], [ranking for _, ranking in singles])
        scores = [score for _, score in scored if score is not None]
        tally.counts.update(
            select_calls=len(scores),
            select_prompt_tokens=sum(llm.num_tokens(prompt.messages) for prompt, _ in scored),
            select_answer_tokens=sum(score.tokens for score in scores),
        )
        values = iter([0.0 if score is None else score.total for _, score in scored])
        return [np.array([next(values) for _ in ranking]) for ranking in batch.rankings]


def _check_target(example: Example, *, evidence: bool) -> None:
    """Raises UserError for a question without a target, or with `evidence` for one without evidence too."""
    if example.target is None and not (evidence and example.relevant):
        raise UserError(
            f"select.method oracle reads the answers, and question {example.id!r} has none; take a split "
            "with targets, or another method"
        )


@dataclass(frozen=True, kw_only=True)
class Evidence(Select):
    """All relevant documents that the question may see, including those that were not retrieved.

    Candidates come first, in the retriever's order, then the others in the order of the history. If the data
    names no relevant documents, nothing is selected. A document cut into passages is included once, as the
    retrieved passage or otherwise its first one.
    """

    method: Literal["evidence"] = "evidence"

    @property
    def ceiling(self) -> bool:
        return True

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> SelectSlot:
        def relevant(example: Example, ranking: Ranking) -> Ranking:
            visible = [store.visible(example, example.user_id)]
            visible += [store.visible(example, "")] if store.has_shared else []
            retrieved = [candidate.row for candidate in ranking]
            allowed = list(dict.fromkeys([*retrieved, *np.concatenate(visible).tolist()]))
            documents = zip(allowed, store.documents(allowed), strict=True) if any(example.relevant) else ()
            rows = np.array([row for row, document in documents if is_relevant(example, document)], int)
            rows = rows[np.sort(np.unique(store.firsts[rows], return_index=True)[1])][: self.k]
            return candidates(store, rows, -np.arange(len(rows), dtype=float))

        def select(examples: Examples, queries: Queries, rankings: Sequence[Ranking]) -> list[Ranking]:
            return [relevant(*pair) for pair in zip(examples, rankings, strict=True)]

        return select
