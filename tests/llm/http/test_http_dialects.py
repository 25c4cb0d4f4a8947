"""Log-probabilities from servers of every kind, against a made-up server's formula."""

from pathlib import Path
from typing import Any

import pytest
from servers import Fault, Server, fake_answer, fake_score

from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.http.requests import DIALECTS
from pbr_jax.llm.protocol import Prompt, Score
from pbr_jax.llm.tokens import chat

PROMPTS: tuple[Prompt, ...] = (
    "the cat", [{"role": "user", "content": "hi"}], "a", "the cat",
    [{"role": "user", "content": "naïve café 😀"}], "on the mat the hat sat",
    [{"role": "user", "content": "hi"}],
)  # fmt: skip
TARGETS = ("dog", " hat", "a long answer of many tokens", "dog", "é", "", "1")


def scorer(server: Server, tiny: Path, dialect: str) -> HTTPLLM:
    fields: dict[str, Any] = {"url": server.url, "tokenizer": str(tiny), "log_probs": dialect}
    config = schema.LLM(backend="http", model="m", retries=2, **fields)
    return HTTPLLM(config, pause=lambda stop, seconds: None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_scores_are_of_the_targets_tokens_alone(tiny, dialect):
    told: dict[int, Score] = {}
    with Server(fake_answer, [Fault(delay=0.05)]) as server:
        llm = scorer(server, tiny, dialect)
        scores = llm.score(PROMPTS, TARGETS, on_batch=lambda i, s: told.update(zip(i, s)))
    assert scores == [fake_score(tiny, prompt, target) for prompt, target in zip(PROMPTS, TARGETS)]
    assert told == dict(enumerate(scores))
    assert len({score.total for score in scores}) == 6


def test_the_requests_for_scores_are_what_the_servers_document(tiny):
    ids = chat.load(tiny).encode("ab") + chat.load(tiny).encode_target("cde")
    neutral = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}
    common = {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0.0, **neutral}
    wanted = {
        "vllm": ("/v1/completions", {**common, "prompt_logprobs": 0}),
        "echo": ("/v1/completions", {**common, "echo": True, "logprobs": 1}),
        "sglang": (
            "/generate",
            {
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, **neutral},
                "return_logprob": True,
                "logprob_start_len": 1,
            },
        ),
    }
    for dialect in DIALECTS:
        with Server(fake_answer) as server:
            scorer(server, tiny, dialect).score(["ab"], ["cde"])
            [request] = server.requests
        assert (request.path, request.body) == wanted[dialect]


def test_an_echo_without_the_generated_token_is_as_good(tiny):
    def cut(answer: Any) -> Any:
        inner = answer["choices"][0]["logprobs"]
        return {"choices": [{"logprobs": {"token_logprobs": [0.0, *inner["token_logprobs"][1:-1]]}}]}

    with Server(fake_answer, [Fault(edit=cut)]) as server:
        assert scorer(server, tiny, "echo").score(["ab"], ["cd"]) == [fake_score(tiny, "ab", "cd")]


def vllm(change: Any) -> Any:
    def edit(answer: Any) -> Any:
        change(answer["choices"][0]["prompt_logprobs"])
        return answer

    return edit


def echo(change: Any) -> Any:
    def edit(answer: Any) -> Any:
        change(answer["choices"][0]["logprobs"]["token_logprobs"])
        return answer

    return edit


def sglang(change: Any) -> Any:
    def edit(answer: Any) -> Any:
        change(answer["meta_info"]["input_token_logprobs"])
        return answer

    return edit


def set_last(value: Any) -> Any:
    return lambda entries: entries.__setitem__(-1, value)


WRONG = [
    ("vllm", vllm(lambda entries: entries.pop()), "vllm gave 4 log-probabilities, want 5; check"),
    ("vllm", vllm(lambda entries: entries.append(None)), "vllm gave 6 log-probabilities, want 5"),
    ("vllm", vllm(set_last({"7": {"logprob": -1.0}})), "vllm gave other tokens than 70, which was sent"),
    ("vllm", vllm(set_last(None)), "other tokens than 70"),
    ("vllm", vllm(set_last({"70": {"rank": 1}})), "log-probability is None, want a number up to 0; check"),
    ("vllm", lambda answer: {"choices": [{"text": "x"}]}, "no prompt_logprobs; check that llm.log_probs"),
    ("vllm", lambda answer: {"choices": [{"prompt_logprobs": None}]}, "no prompt_logprobs"),
    ("echo", echo(lambda entries: entries.append(-1.0)), "echo gave 7 log-probabilities, want 5 or 6"),
    ("echo", echo(lambda entries: entries.__delitem__(slice(2, None))), "echo gave 2 log-probabilities"),
    ("echo", echo(lambda entries: entries.pop(0)), r"echo gave -\S+ for the first token, want null"),
    ("echo", echo(lambda entries: entries.__setitem__(3, None)), "log-probability is None, want a number"),
    ("echo", lambda answer: {"choices": [{"logprobs": None}]}, r"no logprobs\.token_logprobs"),
    ("echo", lambda answer: {"choices": []}, "no choices"),
    ("sglang", sglang(lambda entries: entries.pop()), "sglang gave 3 log-probabilities, want 4"),
    ("sglang", sglang(set_last([-1.0, 7, None])), "sglang gave other tokens than 70"),
    ("sglang", sglang(set_last(-1.0)), "sglang gave other tokens than 70"),
    ("sglang", sglang(set_last([None, 70, None])), "log-probability is None"),
    ("sglang", sglang(set_last([float("nan"), 70, None])), "log-probability is nan"),
    ("vllm", vllm(set_last({"70": {"logprob": 10**400}})), "log-probability is 10{39}, want"),
    ("vllm", vllm(set_last({"70": {"logprob": 5.0}})), r"log-probability is 5\.0, want"),
    ("echo", echo(lambda entries: entries.__setitem__(3, True)), "log-probability is True"),
    ("sglang", sglang(set_last([-(10**305), 70, None])), "log-probability is -10{38}, want"),
    ("sglang", sglang(set_last([float("-inf"), 70, None])), "log-probability is -inf"),
    ("sglang", lambda answer: {"meta_info": {}}, r"no meta_info\.input_token_logprobs"),
    ("sglang", lambda answer: {"text": "x"}, r"no meta_info\.input_token_logprobs"),
]


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_log_probabilities_that_are_not_of_what_was_sent_are_one_line(tiny, place):
    dialect, edit, message = WRONG[place]
    assert chat.load(tiny).encode_target("e") == [70]
    with Server(fake_answer, [Fault(edit=edit)]) as server:
        with pytest.raises(UserError, match=message) as caught:
            scorer(server, tiny, dialect).score(["ab"], ["cde"])
        assert len(server.requests) == 1
    assert "\n" not in str(caught.value)


def test_a_log_probability_above_0_by_rounding_is_taken(tiny):
    with Server(fake_answer, [Fault(edit=sglang(set_last([1e-7, 70, None])))]) as server:
        [score] = scorer(server, tiny, "sglang").score(["ab"], ["e"])
    assert score == (1e-7, 1)


def test_sglang_may_report_an_id_as_zero(tiny):
    """It does so for the last id of the vocabulary."""
    with Server(fake_answer, [Fault(edit=sglang(lambda entries: entries[-1].__setitem__(1, 0)))]) as server:
        assert scorer(server, tiny, "sglang").score(["ab"], ["cde"]) == [fake_score(tiny, "ab", "cde")]
