"""The verdicts of a language model: which answer is taken, and how probable each is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import Document
from pbr_jax.llm.protocol import Score
from pbr_jax.options import Remarks
from pbr_jax.remarks.judge import Agent
from pbr_jax.remarks.log import Remark

VERDICTS = {
    "correct, shared": ("correct", "shared"),
    "correct, personal": ("correct", "personal"),
    "incorrect": ("incorrect", "personal"),
    "unknown": ("unknown", "personal"),
}
OPERATIONS = {
    "add": ("add", None),
    **{f"{way} {n + 1}": (way, n) for n in (0, 1) for way in ("modify", "hide")},
}  # of two documents, a shared one and one of the user
ANSWERS = [*VERDICTS, *OPERATIONS]
CLAIM = Remark(0, "", 0.0, "ann", "it rains", "summarised", "it rains")


class Lengths:
    """A model by which each token of an answer has the same log p, and answers have these lengths."""

    fingerprint = "lengths"

    def __init__(self, each: dict[str, float], tokens: dict[str, int]) -> None:
        self.each, self.tokens = each, tokens

    def count(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])

    def score(self, prompts: Any, targets: list[str]) -> list[Score]:
        return [Score(self.each[one] * self.tokens[one], self.tokens[one]) for one in targets]


@given(
    st.permutations([-0.1 * n for n in range(1, len(ANSWERS) + 1)]),
    st.lists(st.integers(1, 9), min_size=len(ANSWERS), max_size=len(ANSWERS)),
)
def test_answers_are_compared_per_token_whatever_their_lengths(each: list[float], tokens: list[int]) -> None:
    llm: Any = Lengths(dict(zip(ANSWERS, each)), dict(zip(ANSWERS, tokens)))
    shown = [Document("d", "", "it is dry", shared=True), Document("e", "ann", "ann likes rain")]
    found = Agent(llm, Remarks(judgement="direct")).judge(CLAIM, shown)
    best = max(VERDICTS, key=llm.each.__getitem__)
    assert (found.verdict, found.route) == VERDICTS[best]
    weights = np.exp([llm.each[one] for one in VERDICTS])
    assert [found.evidence["probabilities"][one] for one in VERDICTS] == pytest.approx(
        weights / weights.sum()
    )
    if found.verdict == "incorrect":
        assert (found.operation, found.target) == ("add", None)
        return
    place = 0 if found.route == "shared" else 1  # the only document of that store
    ways = [name for name, (_, target) in OPERATIONS.items() if target in (None, place)]
    assert (found.operation, found.target) == OPERATIONS[max(ways, key=llm.each.__getitem__)]


def test_a_claim_is_right_only_if_one_answer_that_says_so_is_the_likeliest() -> None:
    """Two answers say that it is correct. They are not added up against the one that says it is not."""
    each = {"correct, shared": -0.5, "correct, personal": -0.5, "incorrect": -0.4, "unknown": -3.0}
    llm: Any = Lengths(each, dict.fromkeys(each, 2))
    assert Agent(llm, Remarks(judgement="direct")).judge(CLAIM, []).verdict == "incorrect"
