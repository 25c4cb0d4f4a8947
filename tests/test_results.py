"""What results.json says of an evaluation, from a store and raw answers."""

from pathlib import Path

import pytest

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment import evaluation as results
from pbr_jax.experiment.run import _of_stages
from pbr_jax.options import Eval
from pbr_jax.tasks import released


def told(folder: Path, name: str, raw: list[str] | None) -> results.Evaluated:
    """What results.json says of a run of this task with these raw answers."""
    examples = [Example(f"q{i}", f"u{i}", "ask", "ask", "1", ()) for i in range(3)]
    build(folder / "store.sqlite", examples)
    answers = (
        None
        if raw is None
        else [
            {"text": text, "prompt_tokens": 1, "documents": 0, "messages": [], "probabilities": None}
            for text in raw
        ]
    )
    store = Store(folder / "store.sqlite")
    values, _ = results.evaluated(
        released(name), store, results.Made([[], [], []], answers), Eval(resamples=10), seed=0
    )
    return values


def counts(folder: Path, name: str, raw: list[str] | None) -> dict[str, int]:
    """The counts of such a run."""
    return told(folder, name, raw).counts


def test_raw_answers_without_a_number_are_counted(tmp_path: Path):
    raw = ["I would say 4 stars", "It was lovely!", "10"]
    assert counts(tmp_path, "lamp_3", raw)["unreadable_answers"] == 1  # 10 is a number, if no rating
    assert counts(tmp_path, "lamp_3", ["1", "2", "3"])["unreadable_answers"] == 0


def test_answers_without_text_are_counted_and_nothing_where_none_was_asked_for(tmp_path: Path):
    assert counts(tmp_path, "lamp_7", ["", "x", "y"])["unreadable_answers"] == 1
    assert "unreadable_answers" not in counts(tmp_path, "lamp_3", None)


@pytest.mark.parametrize("name", ["lamp_3", "lamp_7"])
def test_thinking_without_an_end_is_counted_and_noted(tmp_path: Path, name: str):
    values = told(tmp_path, name, ["<think>a 1?</think>4", "<think>a 1?", "[THINK]\nwell"])
    assert values.counts["unreadable_answers"] == 2
    assert values.counts["unfinished_thinking"] == 2
    assert [note for note in values.notes if note.startswith("2 of 3 answers end inside")]
    values = told(tmp_path, name, ["4", "<think>a 1?</think>4", "2"])
    assert "unfinished_thinking" not in values.counts
    assert not any("thinking" in note for note in values.notes)


def test_measures_of_folds_are_averaged() -> None:
    """Every fold has a stage of its own; of the stages of a run without folds the last one counts."""
    measured = {
        "cohorts": {"silhouette": 0.5, "clusters": 3},
        "cohorts 2": {"silhouette": 0.1, "silhouette_without_noise": 0.4},
        "other": {"seconds": 1},
    }
    assert _of_stages(measured, True) == {"silhouette": 0.3, "silhouette_without_noise": 0.4}
    assert _of_stages(measured, False) == {"silhouette": 0.1, "silhouette_without_noise": 0.4}
    assert _of_stages({}, True) == {}
