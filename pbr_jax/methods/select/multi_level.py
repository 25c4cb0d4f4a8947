"""Candidates judged a few at a time, in steps that grow, until one of them is relevant: LUF, Appendix A.2.

One document is judged by the probability of yes (the structure of prompt A.1.1), several by the numbers that
the model writes (A.1.2). The first documents of a ranking are the likeliest to be relevant. They are judged
alone, which is most precise, and those that follow together, which takes fewer tokens.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM, Sampling
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import best_first, by_score
from pbr_jax.methods.select.judging import Judging, RewardFn, text_of
from pbr_jax.models.thinking import after_thinking
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Wording
from pbr_jax.text.judging import NO, NONE, YES

_NUMBER = 4  # tokens that one number of an answer takes at most, with what stands before it


@dataclass(frozen=True, kw_only=True)
class MultiLevel(Judging):
    """The relevant candidates of the first step that has some, then all others in the retriever's order.

    The prompt contains the first `k`. Counts (`select_lists_…`) report the answers that could not be read.
    """

    method: Literal["multi_level"] = "multi_level"
    k: int = 5  # number of documents in the prompt. The paper reports R@5
    # number of documents judged in each step. Documents after these are not judged. In Table 7, "single" is
    # 40 times 1 and "every 20" is 20 20
    steps: tuple[int, ...] = (1, 1, 1, 1, 1, 5, 10, 20)
    # llm: the language model judges; oracle: the relevant documents in the data decide. With oracle, prompts
    # are counted but no model runs
    judge: Literal["llm", "oracle"] = "llm"
    # token budget of the request and all candidates in one prompt. The default fits 20 whole paragraphs
    max_tokens: int = 6144

    @property
    def ceiling(self) -> bool:
        return self.judge == "oracle"

    def check(self) -> None:
        super().check()
        if not self.steps or min(self.steps) < 1:
            raise UserError(f"select.steps is {list(self.steps)}, want one number or more, each at least 1")

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        if self.judge == "llm":
            self.model(run).check_scoring("select.method multi_level")
        return super().needs(run)

    @builds_nodes
    def check_run(self, run: Run) -> None:
        store: Store = run.data.value
        if self.judge == "oracle":
            _check_known(list(store.examples()))

    def slot(
        self, tally: Tally, *, llm: LLM, wording: Wording, backfill_gains: Curve | None = None
    ) -> SelectSlot:
        reward = self.reward_fn(llm, wording, tally)

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            if self.judge == "oracle":
                _check_known(examples)
            found = [np.zeros(len(ranking)) for ranking in rankings]
            start = 0
            for step in self.steps:
                asked = [
                    i for i, ranking in enumerate(rankings) if start < len(ranking) and not found[i].any()
                ]
                steps = [
                    _Step(examples[i], text_of(queries[i]), rankings[i][start : start + step]) for i in asked
                ]
                for i, relevant in zip(asked, _judged(reward, steps, step, self.judge == "oracle")):
                    found[i][start : start + step] = relevant
                start += step
            return found

        select = by_score(self, score, backfill_gains)
        return lambda examples, queries, rankings: select(examples, queries, best_first(rankings))


@dataclass(frozen=True)
class _Step:
    """Candidates of a question that are judged together."""

    example: Example
    query: str
    ranking: Ranking

    @property
    def gold(self) -> list[bool]:
        return [is_relevant(self.example, candidate.document) for candidate in self.ranking]


def _check_known(examples: Examples) -> None:
    if examples and not any(example.relevant for example in examples):
        raise UserError(
            f"select.judge oracle reads the relevant documents, and question {examples[0].id!r} has none, as "
            "have those beside it; take data that name them, or select.judge llm"
        )


def _judged(reward: RewardFn, steps: Sequence[_Step], size: int, oracle: bool) -> list[list[bool]]:
    """Which candidates of each step are relevant."""
    reward.tally.counts["select_judged"] += sum(len(step.ranking) for step in steps)
    alone = [step for step in steps if len(step.ranking) == 1]
    together = [step for step in steps if len(step.ranking) > 1]
    found = iter(_alone(reward, alone, oracle) if alone else [])
    others = iter(_together(reward, together, size, oracle) if together else [])
    return [next(found if len(step.ranking) == 1 else others) for step in steps]


def _alone(reward: RewardFn, steps: Sequence[_Step], oracle: bool) -> list[list[bool]]:
    prompts = [reward.write.is_relevant(step.query, step.ranking[0].document) for step in steps]
    if oracle:
        reward.counted(prompts, len(prompts) * (reward.llm.count(YES) + reward.llm.count(NO)))
        return [step.gold for step in steps]
    with reward.asking(step.example.id for step in steps for _ in (YES, NO)):
        scores = reward.llm.score([p for p in prompts for _ in (YES, NO)], [YES, NO] * len(prompts))
    reward.counted(prompts, sum(score.tokens for score in scores))
    return [[yes.total >= no.total] for yes, no in zip(scores[::2], scores[1::2], strict=True)]


def _together(reward: RewardFn, steps: Sequence[_Step], size: int, oracle: bool) -> list[list[bool]]:
    prompts = [
        reward.write.which(step.query, [candidate.document for candidate in step.ranking]) for step in steps
    ]
    if oracle:
        answers = [", ".join(str(n) for n, right in enumerate(step.gold, 1) if right) for step in steps]
        texts = [answer or NONE for answer in answers]
    else:
        with reward.asking(step.example.id for step in steps):
            texts = reward.llm.generate(prompts, Sampling(_NUMBER * size))
    reward.counted(prompts, sum(map(reward.llm.count, texts)))
    found = []
    for step, text in zip(steps, texts, strict=True):
        numbers, faults = numbered(text, len(step.ranking))
        reward.tally.counts["select_lists"] += 1
        reward.tally.counts.update({f"select_lists_{fault}": 1 for fault in faults})
        found.append([number in numbers for number in range(1, len(step.ranking) + 1)])
    return found


def numbered(text: str, count: int) -> tuple[set[int], list[str]]:
    """The numbers, from 1 to `count`, that an answer names, and what was wrong with it.

    It is read behind the model's thinking, and one that begins with no or none names nothing. Faults:
    `unreadable` (it names none and does not say so), `out_of_range`.
    """
    text = after_thinking(text) or ""
    if re.match(rf"\W*({NO}|{NONE})\b", text, flags=re.IGNORECASE):
        return set(), []
    named = {int(digits) for digits in re.findall(r"(?<!\d)\d{1,9}(?!\d)", text)}
    inside = {number for number in named if 1 <= number <= count}
    faults = [*["unreadable"] * (not inside), *["out_of_range"] * (inside != named)]
    return inside, faults
