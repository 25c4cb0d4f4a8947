"""What a check says, and that it never says more than its intervals."""

import dataclasses
import html
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.checking.check import check
from pbr_jax.checking.looks import Look, look_at
from pbr_jax.checking.rounds import ROWS
from pbr_jax.checking.verdict import (
    Answer,
    Copies,
    Group,
    Measure,
    Verdict,
    answer,
    copies,
    corrected,
    needed,
    top_share,
)
from pbr_jax.checking.words import answered, blocks, headline, told
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.render import Fold, Forest, Paragraph, Table
from pbr_jax.eval.runs import Record
from pbr_jax.eval.significance import Difference, paired_difference
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.writing import import_table

HELPS, NONE, HARMS = (Difference(v, v - 0.2, v + 0.2, 0.01, 0.3) for v in (0.5, 0.1, -0.5))


@pytest.mark.parametrize(
    ("gain", "beyond", "users", "wanted"),
    [
        (HELPS, HELPS, 50, "helps"),
        (HELPS, NONE, 50, "helps_like_any"),
        (HELPS, HARMS, 50, "helps_like_any"),
        (NONE, HELPS, 50, "cannot_tell"),
        (NONE, NONE, 50, "cannot_tell"),
        (HARMS, NONE, 50, "harms"),
        (HELPS, HELPS, 9, "cannot_tell"),
        (HARMS, HARMS, 6, "cannot_tell"),
    ],
)
def test_what_intervals_allow(gain: Difference, beyond: Difference, users: int, wanted: str) -> None:
    assert answer(gain, beyond, users) == wanted


def verdict_of(found: Answer, *measures: Measure, **groups: list[Group]) -> Verdict:
    one, costs = {"bm25": HELPS}, dict.fromkeys(ROWS, 9.0)
    return Verdict(answer=found, measure="target_nll", questions=40, users=40, values=costs, gains=one,
                   beyond=one, tokens=costs, milliseconds=costs, best=("bm25",), needed=9,
                   measures=measures, groups=groups)  # fmt: skip


def folded(found: Verdict, kind: type) -> list[Any]:
    """The blocks of a kind that are folded."""
    (fold,) = [block for block in blocks(found) if isinstance(block, Fold)]
    return [block for block in fold.blocks if isinstance(block, kind)]


def test_a_yes_names_the_measures_in_which_it_is_worse() -> None:
    worse, few, open = (
        Measure(f"m{n}", n, n, 0.4, 0.1, gain, NONE) for n, gain in ((40, HARMS), (9, HARMS), (30, NONE))
    )
    page = told(verdict_of("helps", worse, few, open))
    assert "does worse with the own history than without documents: m40 -0.500 [-0.700, -0.300]" in page
    assert "(40 questions). Read some answers" in page
    assert "But by other" not in told(verdict_of("helps", few, open))
    assert "But by other" not in told(verdict_of("cannot_tell", worse))


def test_groups_of_few_users_show_no_interval() -> None:
    some = [
        Group("1 to 4", 20, 12, HELPS, 0.01, shown=True),
        Group("5 to 90", 20, 9, HELPS),
        Group("91", 30, 30, NONE, 0.2),
    ]
    found = verdict_of("helps", **{"documents in the history": some})
    page, forest = told(found), folded(found, Forest)[0]
    assert [None if one is None else one.value for _, one in forest.lines] == [0.5, None, 0.1]
    assert "| 5 to 90 | 20 | 9 | too few users |" in page
    small = told(verdict_of("helps", category=[some[1], some[1]]))
    assert "| category | questions | users | gain |  |" in small
    assert "| scale: " in page
    assert "a gain is shown for documents in the history 1 to 4 (3 groups, Holm-corrected)." in page
    assert "For whom: the questions are too few" in told(verdict_of("helps"))
    assert told(verdict_of("helps", category=[])) == told(verdict_of("helps"))


def test_what_a_control_leaves_open_is_said_before_the_history_is_dropped() -> None:
    found = verdict_of("helps_like_any")
    wide, none, worse = (
        dataclasses.replace(found, beyond={"bm25": Difference(v, v - 0.8, v + 0.8, 0.1, 1.2)})
        for v in (0.6, -0.1, -0.9)
    )
    size = "and about 160 questions would show one of the size that was measured; take more users"  # 40 * 2²
    assert f"a gain of up to +1.400 over another user's documents is not excluded, {size}" in told(wide)
    assert "up to +0.700 over another user's documents is not excluded; take more users" in told(none)
    assert "Another check of these data will have 97.5 % intervals, about 14.4 % wider" in told(wide)
    assert "What to do next: show a few fixed examples" in told(worse)
    assert "not excluded" not in told(worse) + told(verdict_of("helps"))


def test_one_user_has_no_interval() -> None:
    one = Difference(-0.00001, -0.00001, -0.00001, None, None)
    found = dataclasses.replace(verdict_of("cannot_tell"), questions=1, users=1, gains={"bm25": one})
    assert answered(found) == "It cannot be told from 1 user: at least 10 are needed"
    assert "+0.000 over no documents. Measured on 1 question of 1 user, which have no interval" in headline(
        found
    )


def test_what_weakens_an_answer_stands_under_it() -> None:
    found = verdict_of("helps")
    cold = dataclasses.replace(found, cold=(18, 100))
    assert "18 of 100 questions come from users without a history yet" in told(cold)
    assert "Over all questions the gain is 82 % of the one above." in told(cold)
    again = dataclasses.replace(found, look=Look(3, "mine/.pbr_jax_checks"), confidence=0.9875)
    assert "This is check 3 of these data." in told(again)
    assert "(98.8 % now)" in told(again)
    assert "One user has 61 % of the gain" in told(dataclasses.replace(found, top=0.61))
    for words in ("without a history", "This is check", "One user has"):
        assert words not in told(dataclasses.replace(found, top=0.5))


def test_the_price_is_of_the_tokens_that_prompts_have() -> None:
    found = dataclasses.replace(verdict_of("helps"), price=(2.0, 8.0))
    assert "| own, by words (BM25) | 9 | 9.0 | 0.018 + answers |" in told(found)  # 2 * 9 tokens * 1000 / 1e6


def test_the_share_of_the_user_who_gains_most() -> None:
    def runs(gains: dict[str, list[float]]) -> Any:
        names = [(user, i) for user, own in gains.items() for i in range(len(own))]
        rows = {}
        for row, less in (("bm25", 1.0), ("one_other_user", 0.0)):
            rows[row] = SimpleNamespace(records={
                f"{user}{i}": Record(user, None, "x", {"target_nll": 5.0 - less * gains[user][i]})
                for user, i in names})  # fmt: skip
        return rows

    assert top_share(runs({"a": [1.0, 2.0], "b": [1.0]}), "target_nll") == pytest.approx(0.75)
    assert top_share(runs({"a": [2.0], "b": [-1.0]}), "target_nll") == pytest.approx(2.0)
    assert top_share(runs({"a": [1.0], "b": [-2.0]}), "target_nll") is None


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12), st.sampled_from([0.95, 0.975]))
def test_groups_are_shown_where_holm_rejects(p_values: list[float], confidence: float) -> None:
    some = [Group(str(i), 20, 20, HELPS, p) for i, p in enumerate(p_values)]
    few = Group("few", 20, 9, HELPS)
    (told_groups,) = corrected({"category": [*some, few]}, confidence).values()
    ordered, rejected = sorted(p_values), set()
    for rank, p in enumerate(ordered):  # the procedure step by step
        if p * (len(ordered) - rank) >= 1 - confidence:
            break
        rejected.add(p)
    assert [one.shown for one in told_groups] == [p in rejected for p in p_values] + [False]


def test_a_repeated_check_is_a_further_look_and_an_equal_one_is_not(tmp_path: Path) -> None:
    one, two = {"questions": 25}, {"questions": 50}
    looks = [look_at(str(tmp_path), "data", asked) for asked in (one, two, one, two, {"questions": 75})]
    assert [look.number for look in looks] == [1, 2, 1, 2, 3]
    assert [look.confidence(0.95) for look in looks[:2]] == pytest.approx([0.95, 0.975])
    assert sum(1 - Look(number).confidence(0.95) for number in range(1, 60)) < 0.1
    assert look_at("", "made", two).number == 1  # other data, in the cache
    assert look_at("", "made", one).number == 2
    assert look_at("", "others", one).number == 1
    (tmp_path / ".pbr_jax_checks").write_text("{")
    with pytest.raises(UserError, match="found no list of earlier checks"):
        look_at(str(tmp_path), "data", one)


def test_so_many_questions_would_tell() -> None:
    generator = np.random.default_rng(0)

    def found(count: int) -> Difference:
        noise = generator.normal(0.2, 1.0, (count, 1))
        return paired_difference(noise, np.zeros_like(noise), [str(i) for i in range(count)], plain_mean)

    few = found(100)._replace(value=0.2)
    wanted = needed(few, 100)
    assert wanted is not None
    seen = [found(wanted).low > 0 for _ in range(200)]
    assert 0.7 < np.mean(seen) < 0.9  # the power is .8
    assert needed(Difference(0.0, 0.0, 0.0, None, None), 9) is None


def rows(users: int, each: int, own: Callable[[int, int], str]) -> list[dict[str, object]]:
    return [
        {"user": f"u{u:02d}", "time": f"2024-{1 + i:02d}-01", "input": f"say {i}", "output": own(u, i)}
        for u in range(users)
        for i in range(each)
    ]


@pytest.fixture
def made(tmp_path: Path, tiny_models: dict[str, str]) -> Callable[..., Verdict]:
    def checked(table: list[dict[str, object]], minutes: float = 0.001, **columns: Any) -> Verdict:
        import_table(table, tmp_path / "data", Columns(**columns))
        place = {"benchmark.name": "own", "benchmark.root": str(tmp_path / "data"), **tiny_models}
        short = {"encoder.max_length": 32, "generate.max_new_tokens": 4}
        return check(override(Config(), {**place, **short}), tmp_path / "out", minutes)

    return checked


@pytest.mark.long
def test_a_check_from_a_table_to_a_page(made: Callable[..., Verdict], tmp_path: Path) -> None:
    found = made(rows(12, 3, lambda u, i: f"user {u} says {i}"))
    assert (found.measure, found.questions, found.users) == ("target_nll", 24, 12)
    assert found.cold == (12, 36)
    assert found.values.keys() == ROWS.keys()
    for name, one in found.gains.items():
        assert one.value == pytest.approx(found.values["zero_shot"] - found.values[name], abs=1e-9)
        assert one.low <= one.value <= one.high
    assert found.tokens["bm25"] > found.tokens["zero_shot"]
    decisive = found.gains["bm25"], found.beyond["bm25"]
    still_open = [needed(one, 24) for one in decisive if one.low <= 0 <= one.high]
    assert found.needed == max(filter(None, still_open), default=None)
    page = (tmp_path / "out" / "verdict.md").read_text()
    assert headline(found) in page
    assert "12 of 36 questions come from users without a history yet" in page
    assert sorted(one.gain for one in found.texts)[-1] == found.texts[0].gain
    assert all("says" in one.target and "says" in one.document for one in found.texts)
    assert (tmp_path / "out" / "verdict.json").is_file()
    text = html.unescape((tmp_path / "out" / "report.html").read_text())
    said = [*blocks(found), *folded(found, Paragraph), *folded(found, Table)]
    assert all(block.text in text for block in said if isinstance(block, Paragraph))
    assert all(cell in text for block in said if isinstance(block, Table) for cell in block.rows[-1])


def test_evidence_of_a_few_users_tells_no_way_from_another(made: Callable[..., Verdict]) -> None:
    table = [
        {"user": f"u{i % 3}", "id": f"r{i}", "input": "tea", "gold": f"r{i - 3}" * (i > 2)} for i in range(9)
    ]
    found = made(table, relevant="gold")
    assert (found.measure, found.questions, found.values["recency"]) == ("recall@1", 6, 1.0)
    assert found.best[0] == "recency"
    assert len(found.best) == 5  # each other way finds half of it, and that is of three users


@pytest.mark.long
def test_where_time_is_left_answers_are_scored_too(made: Callable[..., Verdict], tmp_path: Path) -> None:
    found = made(rows(12, 2, lambda u, i: f"user {u} says {i}"), minutes=30.0)
    assert [(one.name, one.questions) for one in found.measures] == [
        ("target_bpb", 12), ("rouge1", 12), ("rougeL", 12), ("meteor", 12)]  # fmt: skip
    assert [name for name, spent in found.milliseconds.items() if not spent] == ["zero_shot"]
    bits = found.measures[0]
    assert bits.gain.value == pytest.approx(bits.nothing - bits.chosen)
    page = (tmp_path / "out" / "verdict.md").read_text()
    header, _, *lines = page[page.index("| measure |") :].splitlines()
    assert header.startswith("| measure | gain over one other user's | gain over no documents |")
    rouge = next(line for line in lines if line.startswith("| rouge1 |"))
    assert rouge.endswith(" | 12 |")
    assert "no time" not in page


@pytest.mark.long
def test_of_six_users_it_cannot_be_told(made: Callable[..., Verdict]) -> None:
    found = made(rows(6, 3, lambda u, i: f"user {u} says {i}"))
    assert found.answer == "cannot_tell"
    assert answered(found).startswith("It cannot be told from 6 users: at least 10 are needed")


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_table([{"user": "a", "input": "x"}, {"user": "a", "input": "y"}], tmp_path / "bare")
    import_table([{"user": "a", "input": "x"}, {"user": "a", "input": "y"}], tmp_path / "data")
    (tmp_path / "bare" / "task.toml").unlink()
    day = [{"user": "a", "input": text, "output": "z", "date": "2024-01-01"} for text in "xy"]
    import_table(day, tmp_path / "day")
    for words, message in (
        ([str(tmp_path / "none"), "--out", "o"], "found no such folder"),
        ([str(tmp_path / "data"), "--out", "o"], "found no answer to any question"),
        ([str(tmp_path / "day"), "--out", "o"], "found no question with a history"),
        ([str(tmp_path / "bare"), "--out", "o"], "found no answer to any question"),
        ([str(tmp_path / "bare")], "no output folder given"),
        ([str(tmp_path / "bare"), "--out", "o", "--minutes", "0"], "minutes is 0, want more than 0"),
        ([str(tmp_path / "bare"), "--out", "o", "--retreive.k", "3"], "retrieve.k"),
    ):
        assert main(["check", *words]) == 2
        assert message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("best", "wanted", "said"),
    [
        (
            ("recency", "random", "bm25", "dense", "fused"),
            "bm25",
            "better than own documents at random. Take",
        ),
        (("dense", "fused"), "fused", "cannot be distinguished here. Take own, by both (fused), which"),
        (("dense", "recency"), "dense", "Take own, by meaning (dense), the best value."),
        (("recency",), "recency", "own, the newest; it is better than each other way"),
    ],
)
def test_the_way_to_take_does_not_rest_on_milliseconds(best: tuple[str, ...], wanted: str, said: str) -> None:
    for fast in best:
        times = {name: 0.1 if name == fast else 9.0 for name in ROWS}
        found = dataclasses.replace(verdict_of("helps"), best=best, milliseconds=times)
        assert found.recommended == wanted
        assert said in told(found)


def test_a_yes_prints_commands_that_can_be_copied() -> None:
    flags = ("--benchmark.name", "own", "--benchmark.root", "my data", "--llm.model", "FOLDER")
    found = dataclasses.replace(verdict_of("helps"), data="mine", folder="checks/mine", flags=flags)
    assert told(found).startswith("# Does the history help? mine\n\n## Yes. The own history helps\n")
    lines = told(found).splitlines()
    assert "pbr-jax examples checks/mine/bm25 checks/mine/zero_shot --count 5" in lines
    run = "pbr-jax run bm25 --benchmark.name own --benchmark.root 'my data' --llm.model FOLDER"
    assert f"{run} --out runs/mine-bm25" in lines
    assert "A good target_nll does not mean good answers" in told(found)
    assert "of my data/task.toml, and check again" in told(found)
    few = told(dataclasses.replace(found, users=9, answer="cannot_tell"))
    assert "pbr-jax run" not in few
    other = dataclasses.replace(found, flags=("--benchmark.name", "lamp_7"))
    assert "task.toml" not in told(other)


def test_copies_of_the_answer_are_counted_and_left_out() -> None:
    def records(gain: float, near: int) -> Any:
        rest = {f"{i}": Record(f"u{i}", None, "x", {"target_nll": 2.0 - gain}) for i in range(12)}
        return rest | {
            f"near{i}": Record(f"u{i}", None, "x", {"target_nll": 2.0 - 2 * gain}, near=True)
            for i in range(near)
        }

    runs: Any = {
        "bm25": SimpleNamespace(records=records(0.5, 3)),
        "zero_shot": SimpleNamespace(records=records(0.0, 3)),
    }
    found = copies(runs, "target_nll", 0.95)
    assert found.questions == 3
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.5)
    page = told(dataclasses.replace(verdict_of("helps"), copies=Copies(3, HELPS)))
    assert "Copying: for 3 of 40 questions" in page
    assert "On the others the gain is +0.500 [+0.300, +0.700]." in page
    assert "fewer than 10 users" in told(dataclasses.replace(verdict_of("helps"), copies=Copies(38, None)))
    assert "Copying" not in told(verdict_of("helps"))
