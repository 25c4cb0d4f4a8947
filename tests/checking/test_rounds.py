"""The rounds of a check: how many questions fit into the time, by a clock of the test's own."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pbr_jax.checking import rounds as check_rounds
from pbr_jax.config import Config
from pbr_jax.llm import usage

WAYS: dict[str, Any] = {name: {} for name in ("zero_shot", "bm25", "dense", "fused")}


def machine(each: Callable[[str, int], float]) -> tuple[Callable[[], float], Any, dict[str, int]]:
    """A clock, and runs that move it on by `each` question that a way has not asked before; one that takes no
    time is in the cache."""
    now, asked = [0.0], dict.fromkeys(WAYS, 0)

    def took(config: Config, out: Path, *, overwrite: bool) -> SimpleNamespace:
        size, before = config.limit or 0, asked[config.system]
        new = [each(config.system, number) for number in range(before, size)]
        now[0] += sum(new)
        usage.look_up(known=size - len(new) + sum(not one for one in new), made=sum(map(bool, new)))
        asked[config.system] = max(size, before)
        return SimpleNamespace(path=out)

    return lambda: now[0], took, asked


def first_round(
    each: Callable[[str, int], float], end: float, monkeypatch: pytest.MonkeyPatch, out: Path
) -> tuple[check_rounds.Round, dict[str, int]]:
    clock, took, asked = machine(each)
    monkeypatch.setattr(check_rounds, "run", took)
    return next(check_rounds.rounds(Config(), WAYS, out, 100, end, clock=clock)), asked


def test_rounds_grow_as_far_as_time_allows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for end, total, wanted in (
        (1e9, 1000, [25, 50, 100, 200, 400, 800, 1000]),
        (1e9, 60, [25, 50, 60]),
        (1e9, 61, [25, 50, 61]),
        (20.0, 60, [25]),
        (25.0 + 25 + 20, 1000, [25, 50, 66]),
        (25.0 + 25 + 10, 1000, [25, 50]),
    ):
        clock, took, _ = machine(lambda *_: 1.0)  # a second a question
        monkeypatch.setattr(check_rounds, "run", took)
        every = [*check_rounds.rounds(Config(), {"bm25": {}}, tmp_path, total, end, clock=clock)]
        assert [one.questions for one in every] == wanted
        assert all(one.rate == 1.0 for one in every)
        assert clock() <= max(end, 25)


def test_the_first_round_asks_25_questions_however_slow_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, asked = first_round(lambda *_: 9.0, 60.0, monkeypatch, tmp_path)
    assert first.questions == 25
    assert asked == dict.fromkeys(WAYS, 25)
    assert list(first.folders) == list(WAYS)


def test_a_later_round_that_becomes_slow_falls_back_to_the_last_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, took, asked = machine(lambda _, number: 1.0 if number < 25 else 50.0)
    monkeypatch.setattr(check_rounds, "run", took)
    every = list(check_rounds.rounds(Config(), WAYS, tmp_path, 100, 300.0, clock=clock))
    assert [one.questions for one in every] == [25, 25]
    assert sum(asked.values()) == 4 * 25 + 25  # one way of the second round


@pytest.mark.parametrize("known", [25, 50])
def test_answers_of_the_cache_say_nothing_about_the_speed(
    known: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an earlier check has asked takes no time, and what is new takes 8 s."""
    clock, took, asked = machine(lambda _, number: 8.0 * (number >= known))
    monkeypatch.setattr(check_rounds, "run", took)
    every = [*check_rounds.rounds(Config(), WAYS, tmp_path, 400, 500.0, clock=clock)]
    assert clock() <= 500.0
    assert every[0].rate == 0
    assert every[-1].questions > known
    assert max(asked.values()) <= every[-1].questions + 10
    said = capsys.readouterr().err
    assert "about 0 s for the rest" not in said


def test_a_check_whose_answers_are_all_known_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, took, _ = machine(lambda *_: 0.0)
    monkeypatch.setattr(check_rounds, "run", took)
    every = [*check_rounds.rounds(Config(), WAYS, tmp_path, 60, 10.0, clock=clock)]
    assert [one.questions for one in every] == [25, 50, 60]


def test_lookups_are_counted_for_whoever_asks(tmp_path: Path) -> None:
    with usage.looked_up() as outer:
        usage.look_up(known=1, made=2)
    usage.look_up(known=5, made=5)
    assert outer == {"known": 1, "made": 2}
