"""All candidates in one prompt, and the language model writes their order.

Sun et al., "Is ChatGPT Good at Search? Investigating Large Language Models as Re-Ranking Agents" (RankGPT),
2023, https://arxiv.org/abs/2304.09542, section 3.2: a window moves over the ranking from its end, half a
window at a time, so that what is good in one window comes into the next. Unreadable orders keep the ranking.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.llm import LLM, Sampling
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import best_first, by_score
from pbr_jax.methods.select.judging import Judging, RewardFn, text_of
from pbr_jax.models.thinking import after_thinking
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.tasks import Wording

_NUMBER = 8  # tokens that one number of an order takes at most, with what stands before it


@dataclass(frozen=True, kw_only=True)
class RankGPT(Judging):
    """The language model writes the order of the candidates, window by window. Counts (`select_orders_…`)
    report invalid answers."""

    method: Literal["rankgpt"] = "rankgpt"
    window: int = 20  # number of candidates in one prompt
    step: int = 10  # number of candidates by which the window moves

    def check(self) -> None:
        super().check()
        self.at_least("window", 2)
        self.at_least("step", 1)
        if self.step > self.window:
            raise UserError(
                f"select.step is {self.step} and select.window {self.window}; windows would leave candidates "
                "out: lower select.step"
            )

    def slot(
        self, tally: Tally, *, llm: LLM, wording: Wording, backfill_gains: Curve | None = None
    ) -> SelectSlot:
        judge = self.reward_fn(llm, wording, tally)

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            orders = [list(range(len(ranking))) for ranking in rankings]
            windows = [list(_windows(len(ranking), self.window, self.step)) for ranking in rankings]
            for turn in range(max(map(len, windows), default=0)):
                asked = [i for i, own in enumerate(windows) if turn < len(own)]
                spans = [windows[i][turn] for i in asked]
                shown = [[rankings[i][j] for j in orders[i][a:b]] for i, (a, b) in zip(asked, spans)]
                ids = [examples[i].id for i in asked]
                found = _orders(judge, ids, [queries[i] for i in asked], shown, self.window)
                for i, (start, end), order in zip(asked, spans, found):
                    part = orders[i][start:end]
                    orders[i][start:end] = [part[j] for j in order]
            return [-np.argsort(order).astype(np.float64) for order in orders]

        select = by_score(self, score, backfill_gains)
        return lambda examples, queries, rankings: select(examples, queries, best_first(rankings))


def _windows(count: int, window: int, step: int) -> list[tuple[int, int]]:
    """Where each window begins and ends, the last candidates first; one candidate needs none."""
    if count < 2:
        return []
    found, end = [(max(0, count - window), count)], count
    while found[-1][0] > 0:
        end = max(end - step, min(window, 2))  # one candidate alone has no order
        found.append((max(0, end - window), end))
    return found


def _orders(
    judge: RewardFn, ids: Sequence[str], queries: Sequence[Query], shown: Sequence[Ranking], window: int
) -> list[list[int]]:
    """The order of each list of candidates, best first, as the model writes it."""
    prompts = [
        judge.write.ranks(text_of(query), [c.document for c in ranking])
        for query, ranking in zip(queries, shown, strict=True)
    ]
    with judge.asking(ids):
        texts = judge.llm.generate(prompts, Sampling(_NUMBER * window))
    judge.counted(prompts, sum(map(judge.llm.count, texts)))
    found = []
    for text, ranking in zip(texts, shown, strict=True):
        order, faults = permutation(text, len(ranking))
        judge.tally.counts["select_orders"] += 1
        judge.tally.counts.update({f"select_orders_{fault}": 1 for fault in faults})
        found.append(order)
    return found


def permutation(text: str, count: int) -> tuple[list[int], list[str]]:
    """The order that an answer gives to `count` candidates, numbered from 0, and what was wrong with it.

    It is read behind the model's thinking. Every candidate stands in it once: those that the answer leaves
    out follow in their order. Faults: `unreadable` (it names none), `out_of_range`, `repeated`, `missing`.
    """
    text = after_thinking(text) or ""
    numbers = [int(digits) for digits in re.findall(r"(?<!\d)\d{1,9}(?!\d)", text)]
    # Numbers in brackets are meant as such; "20 records" in prose is not.
    lists = re.findall(r"\[((?:\s*\d{1,9}\s*,?)+)\]", text)
    marked = [int(digits) for inside in lists for digits in re.findall(r"\d+", inside)]
    named = [number - 1 for number in marked or numbers]
    inside = [number for number in named if 0 <= number < count]
    order = list(dict.fromkeys(inside))
    faults = []
    if not order:
        faults.append("unreadable")
    else:
        faults += ["missing"] * (len(order) < count)
    faults += ["out_of_range"] * (len(inside) < len(named))
    faults += ["repeated"] * (max(Counter(inside).values(), default=0) > 1)
    return order + [number for number in range(count) if number not in set(order)], faults
