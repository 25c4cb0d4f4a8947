"""Stop strings of a config and of a task, from the command line to an answer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cli import flags
from pbr_jax.config import Config, override
from pbr_jax.data import read
from pbr_jax.text.answers import parse_answer

HISTORIES = {"ann": ["i love tea", "tea and cats"], "bob": ["football that day"], "cyd": []}


@pytest.fixture
def config(tiny_models, write_tweets: Callable[..., Path]) -> Config:
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(HISTORIES)), **tiny_models}
    small = {"generate.max_new_tokens": 24, "retrieve.method": "recency", "prompt.max_tokens": 900}
    return override(Config(), {**place, **small, "eval.likelihood": "off", "eval.resamples": 20})


def answered(config: Config) -> list[str]:
    return [answer.text for answer in pbr_jax.open(config).answer(list(read(config.benchmark)))]


@pytest.mark.long
def test_a_run_ask_and_a_task_end_answers_at_the_same_places(config: Config, tmp_path: Path):
    """The lists of task and config count together."""
    whole = answered(config)
    first, second = whole[0][3:5], whole[1][6:8]
    wanted = [min((text.partition(one)[0] for one in (first, second)), key=len) for text in whole]
    assert wanted != whole
    assert answered(override(config, {"generate.stop": [first, second]})) == wanted
    task = tmp_path / "stops.toml"
    task.write_text(f"stop = [{json.dumps(first)}]\n")
    both = override(config, {"benchmark.task": str(task), "generate.stop": [second]})
    results = pbr_jax.run(both, tmp_path / "out")
    form = pbr_jax.open(both).answer_format
    assert [record["prediction"] for record in results.records()] == [parse_answer(form, t) for t in wanted]
    asked = "about tea"
    text = pbr_jax.open(config).ask("ann", asked).text
    mark = text[len(text) // 2 :][:2]
    stopped = override(config, {"generate.stop": [mark]})
    assert pbr_jax.open(stopped).ask("ann", asked).text == text.partition(mark)[0].strip()


def test_the_command_line_takes_several_and_refuses_an_empty_one():
    words = ["bm25", "--generate.stop", "\n\n", "Question:"]
    assert flags.config(words, "run")[1].generate.stop == ("\n\n", "Question:")
    with pytest.raises(UserError, match=r"^generate\.stop has an empty text; leave it out$"):
        flags.config([*words, ""], "run")


def test_a_task_with_an_empty_stop_string_is_refused_by_its_file(config: Config, tmp_path: Path):
    task = tmp_path / "stops.toml"
    task.write_text('stop = [""]\n')
    with pytest.raises(UserError, match=r"stops\.toml: stop has an empty text; leave it out"):
        pbr_jax.open(override(config, {"benchmark.task": str(task)}))
