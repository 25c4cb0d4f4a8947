"""The report as a page: what is said is what intervals show; texts stay texts; sizes are bounded."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from run_folders import with_texts

from pbr_jax.eval import page
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.page import Comparison, compare, define, glossary, scale, sentences
from pbr_jax.eval.render import Forest, Heading, Interval, Paragraph, Table
from pbr_jax.eval.report import report
from pbr_jax.eval.runs import read_run, table_rows
from pbr_jax.eval.section import Section
from pbr_jax.eval.significance import paired_difference

N = 24
TARGETS = [str(1 + i % 5) for i in range(N)]
HOSTILE = "</script><script>alert(1)</script><!--\x1b[31m \u202e&amp;"


def answers(seed: int, right: float) -> list[str]:
    key = np.random.default_rng(seed)
    return [target if key.random() < right else str(key.integers(1, 6)) for target in TARGETS]


def compared(*folders: Path) -> Comparison:
    return compare(Section("s", table_rows([read_run(folder) for folder in folders])))


def data(text: str) -> dict:
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


@pytest.fixture
def runs(tmp_path, write) -> list[Path]:
    made = {"zero_shot": answers(2, 0.0), "dense": TARGETS, "random": answers(5, 0.0)}
    return [with_texts(write(tmp_path / name, name, texts)) for name, texts in made.items()]


def test_gains_are_turned_and_shown_where_the_interval_and_the_corrected_p_say_so(runs):
    found = compared(*runs)
    first, second = (
        [r.metrics["mae"] for r in (read_run(run).records or {}).values()] for run in runs[1::-1]
    )
    users = [f"u{i // 2}" for i in range(N)]
    alone = paired_difference(np.array(first)[:, None], np.array(second)[:, None], users, plain_mean,
                              resamples=300, confidence=0.9)  # fmt: skip
    gain = found.gains["mae"]["dense"]
    assert gain.difference.value == pytest.approx(-alone.value)
    assert (gain.difference.low, gain.difference.high) == pytest.approx((-alone.high, -alone.low))
    assert gain.difference.low > 0
    assert [one.shown for one in found.main] == [1, 0]
    assert [one.row.label for one in found.main] == ["dense", "random"]
    assert found.gains["mae"]["random"].p is not None


def test_the_verdict_names_what_is_shown_and_what_is_not(runs):
    better, rest, basis = sentences(compared(*runs))
    assert better.startswith("Shown to be better than zero_shot in mae: dense by +")
    assert rest.startswith("Not shown to differ from zero_shot: random (detectable: ")
    assert "24 questions of 12 users, with 90% intervals" in basis
    turned = compare(Section("s", table_rows([*map(read_run, runs)]), "dense"))
    assert sentences(turned)[0].startswith("Shown to be worse than dense in mae: ")


def test_the_verdict_of_few_users_of_one_run_and_of_other_questions(tmp_path, write):
    users, made = [f"u{i % 9}" for i in range(N)], {"zero_shot": answers(2, 0.0), "dense": TARGETS}
    few = [write(tmp_path / name, name, texts, users=users) for name, texts in made.items()]
    (told,) = sentences(compared(*few))
    assert told.startswith("It cannot be told whether any system is better than zero_shot: there are 9")
    (told,) = sentences(compared(few[1]))
    assert told == "dense has mae 0.000 on 24 questions. There is one run, so nothing is compared."
    other = write(tmp_path / "o", "bm25", TARGETS, data="e" * 20)
    assert "cannot be compared: they read different data" in sentences(compared(few[1], other))[0]


def test_a_checks_runs_are_compared_with_its_control(tmp_path, write):
    made = {"zero_shot": answers(2, 0.0), "dense": TARGETS, "one_other_user": answers(5, 0.0)}
    runs = [write(tmp_path / name, name, texts) for name, texts in made.items()]
    assert compared(*runs).section.reference.system == "one_other_user"
    assert compared(*runs[:2]).section.reference.system == "zero_shot"


def test_the_measure_that_decides_is_the_first_column_and_the_answer_stands_before_the_plot(runs):
    header = ["run", "retrieve.k", "n", "users", "mae", "target_nll"]
    table = page._deciding_first(Table("t", header, [["a", *map(str, range(5))]]), ["target_nll", "mae"])
    assert table.header == ["run", "target_nll", "mae", "retrieve.k", "n", "users"]
    assert table.rows == [["a", "4", "3", "0", "1", "2"]]
    plot = Forest("plot", ["prompt", "gain"], [(["bm25"], Interval(1.0, 0.5, 1.5))], without="")
    blocks = [Heading("Yes."), Paragraph("By so much."), plot, Paragraph("What to do next.")]
    body = report(runs, "html", verdict=blocks).split("<main>")[1]
    box, rest = body.split("</div>", 1)
    assert "Yes." in box
    assert "By so much." in box
    assert rest.index('class="forest"') < rest.index("What to do next.")


def test_nothing_is_bold_where_nothing_is_shown(runs):
    body = report([runs[0], runs[2]], "html").split("<main>")[1].split("<script")[0]
    assert "<b>" not in body
    assert "<b>" in report(runs, "html")


def test_hostile_texts_stay_texts(tmp_path, write):
    runs = [with_texts(write(tmp_path / name, f"<i>{name}", texts), HOSTILE)
            for name, texts in (("a", answers(2, 0.0)), ("b", TARGETS))]  # fmt: skip
    text = report(runs, "html")
    assert text.count("<script") == text.count("</script>") == 2
    assert "<i>" not in text
    assert "alert(1)" in data(text)["questions"][0]["input"]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert r"\x1b" in data(text)["questions"][0]["input"]


def test_questions_are_sampled_within_bounds_and_without_any_nobody_is_named(runs):
    text = report(runs, "html", questions=10)
    held = data(text)
    assert 8 <= len(held["questions"]) <= 10
    assert f"{len(held['questions'])} of 24 questions: the largest gains" in text
    first = held["questions"][0]
    assert [len(run[2]) for run in first["runs"]] == [1, 1, 1]
    assert len(first["documents"]) == 1
    none = report(runs, "html", questions=0)
    assert "text of" not in none
    assert '"u1"' not in none
    assert '<script type="application/json">' not in none


def test_a_page_of_twenty_runs_and_long_texts_stays_small(tmp_path, write):
    runs = [with_texts(write(tmp_path / f"r{i}", f"s{i}", answers(i, 0.3)), f"{i} " + "long " * 2000)
            for i in range(20)]  # fmt: skip
    text = report(runs, "html", questions=400)
    assert len(text.encode()) < 3_000_000
    assert len(data(text)["questions"]) < 24 or len(text) < 2_000_000


def test_numbers_have_three_digits():
    assert page.number(0.57819) == "0.578"
    assert page.number(3.6061) == "3.61"
    assert page.number(0.5, 12.0, signed=True) == "+0.5"
    assert page.number(-0.0001, signed=True) == "0.000"
    assert page.number(-0.25) == "−0.250"
    assert page.interval(0.2, 0.1, 0.3, signed=True) == "+0.200 [+0.100, +0.300]"
    assert page.interval(0.2, 0.2, 0.2) == "0.200"
    assert (
        page.shorter("0.1234 [+0.5678, -1.0000] q1.2345x 3.14159")
        == "0.123 [+0.568, -1.000] q1.2345x 3.14159"
    )


@pytest.mark.parametrize("values", [[], [0.0], [-0.31, 0.02], [1e-9, 2e-9], [1e6], [float("inf"), 1.0]])
def test_scales_hold_their_values_and_zero(values):
    found = scale(values)
    assert all(0 <= found.place(value) <= 100 for value in [0.0, *values] if np.isfinite(value))
    assert 2 <= len(found.ticks) <= 6
    assert all(a < b for a, b in pairwise(found.ticks))


def test_the_glossary_explains_the_measures_that_stand_on_the_page():
    assert "first 5" in define("recall@5")
    assert define("unheard_of") == ""
    assert {"mae", "gain", "interval"} <= set(glossary(["mae", "unheard_of"]))
