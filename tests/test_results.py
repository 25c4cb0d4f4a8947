"""What results.json says of an evaluation, from a store and raw answers."""

from pathlib import Path

from pbr_jax import results
from pbr_jax.data import task
from pbr_jax.index.store import Store, build
from pbr_jax.options import Eval
from pbr_jax.types import Example


def counts(folder: Path, name: str, raw: list[str] | None) -> dict[str, int]:
    """The counts of a run of this task with these raw answers."""
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
        task(name), store, results.Made([[], [], []], answers), Eval(resamples=10), seed=0
    )
    return values["counts"]


def test_raw_answers_without_a_number_are_counted(tmp_path: Path):
    raw = ["I would say 4 stars", "It was lovely!", "10"]
    assert counts(tmp_path, "lamp_3", raw)["unreadable_answers"] == 1  # 10 is a number, if no rating
    assert counts(tmp_path, "lamp_3", ["1", "2", "3"])["unreadable_answers"] == 0


def test_where_any_answer_is_readable_or_none_was_asked_for_nothing_is_counted(tmp_path: Path):
    assert "unreadable_answers" not in counts(tmp_path, "lamp_7", ["", "x", "y"])
    assert "unreadable_answers" not in counts(tmp_path, "lamp_3", None)
