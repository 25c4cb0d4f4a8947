"""The benchmark of what documents are worth: its controls, against loops and on planted worth."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import UserError

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "worth.py"
WORTH = runpy.run_path(str(SCRIPT))


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30))
def test_the_controls_candidates_are_of_another_conversation(clusters: list[str]):
    rankings: list[Any] = [[(name, number)] for number, name in enumerate(clusters)]
    if len(set(clusters)) == 1:
        with pytest.raises(UserError, match="found 1 conversation, wanted two or more"):
            WORTH["elsewhere"](clusters, rankings)
        return
    found = WORTH["elsewhere"](clusters, rankings)
    assert len(found) == len(clusters)
    assert all(ranking in rankings for ranking in found)
    assert all(ranking[0][0] != own for own, ranking in zip(clusters, found, strict=True))


def test_the_best_under_one_wording_is_judged_under_the_other():
    """Of noise the best of ten is far above the first, and under the other wording it is not."""
    rng = np.random.default_rng(0)
    noise = [list(rng.normal(size=(4000, 11))) for _ in range(2)]
    chosen = np.mean([values[1:].max() - values[1] for values in noise[0]])
    assert chosen > 1.4
    assert abs(np.mean(WORTH["checked"](*noise))) < 0.1
    planted = [[values + 9 * (np.arange(11) == 3) for values in one] for one in noise]
    assert np.mean(WORTH["checked"](*planted)) == pytest.approx(9, abs=0.1)
    first, second = np.array([0.0, 1, 5, 2]), np.array([0.0, 3, 4, 7])
    assert WORTH["checked"]([first], [second]) == [((4 - 3) + (2 - 1)) / 2]


@pytest.mark.long
def test_the_script_leaves_questions_without_a_target_out(
    tmp_path: Path,
    tiny_models: dict[str, str],
    fresh_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def conversation(number: int) -> dict[str, Any]:
        talk = {
            f"session_{day}": [{"speaker": "Ann", "dia_id": f"D{day}:1", "text": f"tea {day} cats {number}"}]
            for day in (1, 2, 3)
        }
        dates = {f"{name}_date_time": f"1:00 pm on {day} May, 2023" for day, name in enumerate(talk, 1)}
        asked = [
            {"question": f"tea {day}?", "answer": "cats", "evidence": [f"D{day}:1"], "category": category}
            for day, category in ((1, 1), (2, 5), (3, 4))
        ]
        return {"sample_id": f"c{number}", "conversation": {**talk, **dates}, "qa": asked}

    (tmp_path / "locomo10.json").write_text(json.dumps([conversation(number) for number in range(3)]))
    words = ["--root", str(tmp_path), "--candidates", "3", "--model", tiny_models["llm.model"]]
    monkeypatch.setattr(sys, "argv", ["worth.py", *words, "--encoder", tiny_models["encoder.model"]])
    WORTH["main"]()
    text = capsys.readouterr().out
    assert text.startswith("6 questions, 3 candidates by bm25")
    rows = dict(re.findall(r"\| (.*?) \| [-+]?[\d.]+ \[.*?\] \| (\d+) \|", text))
    assert rows["best less first"] == rows["best less first, another conversation's"] == "6"
    assert rows["best under one wording less first under the other"] == "6"
