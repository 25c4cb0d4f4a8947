"""The worth of profiles: asked once, kept, and finite."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.methods.select import purple_training as rewards
from pbr_jax.methods.select.purple_training import Rewards
from pbr_jax.text.prompts import Written

EXAMPLES = [Example(f"q{i}", f"u{i}", "tea", "tea", "cats") for i in range(3)]
CANDIDATES = [[Candidate(Document(f"d{j}", f"u{i}", "tea"), 0.0, j) for j in range(3)] for i in range(3)]


def write(examples: Any, rankings: Any) -> list[Written]:
    """Prompts that have room for one document."""
    return [Written([{"role": "user", "content": str(ranking[0].row)}], 1, (0, 0)) for ranking in rankings]


def of(values: Callable[[str, list[int]], float], file: Path) -> Rewards:
    def judge(examples: Any, rankings: Any, written: Any) -> np.ndarray:
        return np.array([values(e.id, [c.row for c in ranking]) for e, ranking in zip(examples, rankings)])

    return Rewards(judge, write, EXAMPLES, CANDIDATES, file)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_reward_that_is_not_finite_is_told_with_its_question_and_kept_nowhere(tmp_path: Path, bad: float):
    found = of(lambda name, profile: bad if name == "q1" else 1.0, tmp_path / "rewards.jsonl")
    with pytest.raises(UserError, match=r"training question 'q1' with documents \[2, 0\] is (nan|-inf)"):
        found([(0, (0,)), (1, (2, 0))])
    assert len(found) == 0
    assert not (tmp_path / "rewards.jsonl").exists()
    assert found([(0, (0,))]).tolist() == [1.0]


def test_profiles_whose_prompts_are_cut_to_the_same_text_are_asked_once_in_a_call(tmp_path: Path):
    """Asked twice, a sampled answer would make them worth different amounts."""
    asked = []

    def judge(examples: Any, rankings: Any, written: Any) -> np.ndarray:
        asked.extend((e.id, p.messages[0]["content"]) for e, p in zip(examples, written, strict=True))
        return np.arange(len(written), dtype=np.float32)

    found = Rewards(judge, write, EXAMPLES, CANDIDATES, tmp_path / "rewards.jsonl")
    values = found([(0, (1, 2)), (0, (0, 2)), (0, (1, 0)), (1, (1, 2)), (0, (1, 2))])
    assert asked == [("q0", "1"), ("q0", "0"), ("q1", "1")]
    assert values.tolist() == [0.0, 1.0, 0.0, 2.0, 0.0]
    assert len(found) == 4  # profiles that are known


def test_tokens_are_counted_once_also_after_going_on(tmp_path: Path):
    def judge(examples: Any, rankings: Any, written: Any) -> np.ndarray:
        return np.zeros(len(examples), np.float32)

    def tokens(prompt: Any) -> int:
        return 10 + int(prompt[0]["content"])

    def found() -> Rewards:
        return Rewards(judge, write, EXAMPLES, CANDIDATES, tmp_path / "rewards.jsonl", tokens)

    first = found()
    first([(0, (1, 2)), (0, (1, 0)), (1, (2,))])  # the second is cut to the text of the first
    first([(0, (1, 2))])
    assert first.prompt_tokens == 11 + 12
    again = found()
    assert again.prompt_tokens == 11 + 12
    again([(2, (0,)), (1, (2,))])
    assert again.prompt_tokens == 11 + 12 + 10


def test_what_could_not_be_written_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = of(lambda name, profile: 2.0, tmp_path / "rewards.jsonl")

    def full(path: Path) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(rewards, "open_private", full)
        with pytest.raises(OSError, match="no space left"):
            found([(0, (1, 2))])
    assert len(found) == 0
    found([(0, (1, 2))])
    (line,) = (tmp_path / "rewards.jsonl").read_text().splitlines()
    assert json.loads(line) == {"id": "q0", "profile": [1, 2], "value": 2.0, "tokens": 0}
