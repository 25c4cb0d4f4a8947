"""What a server was asked, and what it costs, is told in results.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Fault, Server, in_dialect

from pbr_jax import run
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm.usage import Usage, cost, count, metered, usage_of

HISTORIES = {f"u{n}": [f"i love tea day {n}", "cats"] for n in range(6)}
COUNTED = ("server_calls", "server_prompt_tokens", "server_completion_tokens", "server_calls_without_usage")

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def config(write_tweets: Callable[..., Path], tiny_models: dict[str, str]) -> Callable[..., Config]:
    root = write_tweets(HISTORIES)

    def made(server: Server, **fields: Any) -> Config:
        place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "llm.url": server.url}
        small = {"retrieve.method": "recency", "generate.max_new_tokens": 8, "eval.resamples": 20}
        served = {"llm.backend": "http", "llm.model": "m", "llm.retries": 0, "llm.concurrency": 1}
        served |= {"llm.check_prompts": False}  # its counts are made up
        return override(Config(), {**place, **small, **served, **fields})

    return made


def answer(path: str, request: Any) -> tuple[int, Any]:
    """Says that a text took 100 tokens and 3, a score 50 and 1."""
    ids = request.get("input_ids") or request.get("prompt")
    if isinstance(ids, list):
        told = in_dialect(path, request, [-1.0] * len(ids), {}, -1.0)
        return 200, told | {"usage": {"prompt_tokens": 50, "completion_tokens": 1}}
    choice = {"message": {"content": "tea"}, "finish_reason": "stop"}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 3}}


def counted(results: Any) -> list[float]:
    return [results.values["counts"].get(name, 0) for name in COUNTED]


def test_tokens_of_answers_and_scores_are_summed_and_priced(config, tiny_models, tmp_path: Path):
    fields = {"llm.log_probs": "vllm", "llm.tokenizer": tiny_models["llm.model"], "prompt.max_tokens": 900}
    with Server(answer) as server:
        first = config(server, **fields)
        results = run(first, tmp_path / "out")
        assert counted(results) == [12, 6 * 100 + 6 * 50, 6 * 3 + 6, 0]
        assert len(server.requests) == 12
        assert "server_cost" not in results.values["counts"]

        priced = override(first, {"llm.price_prompt": 2.0, "llm.price_completion": 10.0})
        keys = [Plan(one).last.key for one in (first, priced)]
        assert keys[0] == keys[1]
        assert Plan(first).identity == Plan(priced).identity
        again = run(priced, tmp_path / "out")
        assert again.values["counts"]["server_cost"] == pytest.approx((900 * 2 + 24 * 10) / 1e6)
        assert json.loads((tmp_path / "out" / "results.json").read_text()) == again.values
        assert "server_cost" not in run(first, tmp_path / "out").values["counts"]
        assert len(server.requests) == 12


def test_an_attempt_that_failed_counts_and_the_cache_costs_nothing(config, tmp_path: Path):
    cut = Fault(edit=lambda given: given | {"choices": [{**given["choices"][0], "finish_reason": "length"}]})
    with Server(answer, [None, None, cut]) as server:
        with pytest.raises(UserError, match="cut off"):
            run(config(server), tmp_path / "out")
        assert counted(run(config(server), tmp_path / "out")) == [7, 700, 21, 0]
        assert len(server.requests) == 7
        other = run(config(server, **{"eval.resamples": 30, "prompt.gamma": 0.59}), tmp_path / "other")
        assert len(server.requests) == 7
        assert counted(other) == [0, 0, 0, 0]


def test_a_server_that_does_not_count_is_told_apart_from_one_that_costs_nothing(config, tmp_path: Path):
    def silent(path: str, request: Any) -> tuple[int, Any]:
        return 200, {"choices": [{"message": {"content": "tea"}}]}

    with Server(silent) as server:
        assert counted(run(config(server), tmp_path / "out")) == [6, 0, 0, 6]


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 7, "completion_tokens": 2}}, Usage(7, 2)),
        (
            {"usage": {"prompt_tokens": 7, "completion_tokens": 9,
                       "completion_tokens_details": {"reasoning_tokens": 6}}},
            Usage(7, 9, 6),
        ),
        ({"meta_info": {"prompt_tokens": 7, "completion_tokens": 1}}, Usage(7, 1)),
        ({"usage": {"prompt_tokens": -7, "completion_tokens": "2"}}, Usage(None, None)),
        ({"usage": {"prompt_tokens": 1 << 60, "completion_tokens": True}}, Usage(None, None)),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, Usage(None, None)),
        ({"usage": {"prompt_tokens": 7, "completion_tokens": 0}}, Usage(7, 0)),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 3}}, Usage(None, 3)),
        ({"usage": [1, 2]}, Usage(None, None)),
        ({"usage": None}, Usage(None, None)),
        ({}, Usage(None, None)),
    ],
)  # fmt: skip
def test_usage_is_read_as_servers_give_it(answer, usage):
    assert usage_of(answer) == usage


def test_meters_count_what_is_inside_them():
    count({"server_calls": 9})
    with metered() as outer:
        count({"server_calls": 1})
        with metered() as inner:
            count({"server_calls": 2})
        assert inner == {"server_calls": 2}
    assert outer == {"server_calls": 3}


def test_a_cost_needs_one_price():
    counts = {"server_prompt_tokens": 3_000_000, "server_completion_tokens": 500_000}
    assert cost(counts, None, None) is None
    assert cost(counts, 2.0, None) == 6.0
    assert cost(counts, 2.0, 8.0) == 10.0
    assert cost({}, 2.0, 8.0) == 0.0
