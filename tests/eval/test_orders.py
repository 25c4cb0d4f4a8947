"""The study of orders, and what choosing and answering cost, in reports."""

import json
from pathlib import Path

import numpy as np
import pytest
from run_folders import change

from pbr_jax.eval.report import report
from pbr_jax.eval.tables import best_shares

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_own_order_shares_where_others_are_as_good():
    values = np.array([[3.0, 1, 2], [1, 3, 2], [2, 2, 1], [1, 1, 1], [np.nan, 1, 2]])
    assert best_shares(values, lower=False)[:4] == pytest.approx([1, 0, 1 / 2, 1 / 3])
    assert best_shares(values, lower=True)[:4] == pytest.approx([0, 1, 0, 1 / 3])
    assert np.isnan(best_shares(values, lower=False)[4])


@pytest.fixture
def study(write, tmp_path: Path) -> list[Path]:
    """Six orders of one method: the own one answers half of the questions better than any other."""
    right = [str(1 + i % 5) for i in range(24)]
    wrong = ["5" if answer == "1" else "1" for answer in right]
    found = []
    for seed in range(-1, 5):
        answers = right if seed < 0 else [*right[:12], *wrong[12:]]
        order = {"order": "best_first"} if seed < 0 else {"order": "random", "order_seed": seed}
        found.append(write(tmp_path / f"run{seed}", "dense", answers, fields={"prompt": order}))
    return found


def cells_of(told: str, caption: str) -> list[str]:
    """The line of "dense" in the table after these words."""
    line = next(line for line in told.split(caption)[1].splitlines() if "dense" in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_report_says_how_often_the_own_order_is_the_best(study: list[Path]):
    cells = cells_of(report(study), "In how many questions a method")
    assert cells[:4] == ["dense", "6", "16.7%", "24"]
    assert cells[4].startswith(f"{(12 + 12 / 6) / 24:.1%}")


def test_runs_that_differ_in_more_than_the_order_are_no_study(study: list[Path]):
    for folder in study[1:]:
        config = json.loads((folder / "config.json").read_text())
        change(folder, "config.json", retrieve={"k": config["retrieve"]["k"] + 1})
    assert "In how many questions a method" not in report(study)
    assert "In how many questions a method" not in report(study[:1])


def test_the_report_says_what_choosing_and_answering_cost(study: list[Path]):
    change(
        study[0],
        counts={
            "examples": 20, "select_calls": 40, "select_prompt_tokens": 20_000, "select_answer_tokens": 100,
            "select_orders": 40, "select_orders_missing": 10, "select_orders_unreadable": 4,
            "generate_calls": 20, "generate_prompt_tokens": 4_000, "generate_answer_tokens": 200,
        },
        seconds={"rank": 11.0, "select_llm": 10.0, "generate": 5.0, "generate_llm": 4.0},
    )  # fmt: skip
    told = report(study[:1])
    cells = cells_of(told, "for choosing documents and for answering")
    assert cells[1:] == ["2", "1,000", "5", "0.5", "1", "200", "10", "0.2", "1.25"]
    shares = cells_of(told, "Orders that a language model wrote")[1:]
    assert shares == ["40", "10.0%", "25.0%", "0.0%", "0.0%"]
    change(study[1], counts={"examples": 20, "select_calls": 40}, seconds={"rank": 1.0})  # answers nothing
    caption = "for choosing documents and for answering"
    table = report(study[:2]).split(caption)[1].split("\n\n")[1].splitlines()
    assert [line.split("|")[-2].strip() for line in table[2:]] == ["1.25", "–"]
