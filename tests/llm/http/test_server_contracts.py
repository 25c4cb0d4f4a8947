"""What vLLM and SGLang are asked, and what is read from the replies that their source writes.

The replies are in exchanges.json, with the file and commit that each was written down from. The server of
these tests gives a reply for exactly the request that stands beside it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, permutations, takewhile
from pathlib import Path
from typing import Any

import pytest
import servers
from servers import Fault, Server, fake_answer, fake_score

from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm import usage
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import Prompt, Sampling, Score
from pbr_jax.llm.tokens import chat

EXCHANGES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "exchanges.json").read_text())
SCORES, TEXTS, ERRORS = EXCHANGES["scores"], EXCHANGES["texts"], EXCHANGES["errors"]
CUT = [19, 200, 400]  # bytes of a reply that come before its connection breaks


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer makes one token, the last of its vocabulary, of "ab"."""
    path = tmp_path_factory.mktemp("merging")
    servers.write_tiny(path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["ab"] = 258
    tokenizer["model"]["merges"] = [["a", "b"]]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def replay(exchange: Mapping[str, Any]) -> Callable[[str, Any], tuple[int, Any]]:
    def answer(path: str, request: Any) -> tuple[int, Any]:
        if (path, request) != (exchange["path"], exchange["request"]):
            return 418, {"error": {"message": f"not in exchanges.json: {path} {json.dumps(request)}"}}
        return 200, exchange["reply"]

    return answer


def load(server: Server, tokenizer: Path, kind: str = "sglang", **fields: Any) -> HTTPLLM:
    fields = {"url": server.url, "tokenizer": str(tokenizer), "log_probs": kind, "retries": 2, **fields}
    return HTTPLLM(schema.LLM(backend="http", model="m", **fields), pause=lambda stop, seconds: None)


# -- Scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCORES)
def test_all_servers_score_a_target_whose_begin_would_merge_with_the_prompt(merging: Path, kind: str):
    codec = chat.load(merging)
    assert codec.encode("xabc") == [89, 258, 68]  # joined, other tokens
    with Server(replay(SCORES[kind])) as server, usage.metered() as counts:
        assert load(server, merging, kind).score(["xa"], ["bc"]) == [Score(-1.75, 2)]
    assert counts == {"server_calls": 1, "server_prompt_tokens": 4, "server_completion_tokens": 1}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("cut", CUT)
def test_a_score_that_was_cut_off_is_asked_again(merging: Path, kind: str, cut: int):
    with Server(replay(SCORES[kind]), [Fault(cut=cut), Fault(body=b'{"choices": [{')]) as server:
        assert load(server, merging, kind).score(["xa"], ["bc"]) == [Score(-1.75, 2)]
        assert len(server.requests) == 3


def test_vllm_gives_further_tokens_beside_those_of_the_prompt(merging: Path):
    def more(reply: Any) -> Any:
        for entry in reply["choices"][0]["prompt_logprobs"][1:]:
            entry["258"] = {"logprob": -0.125, "rank": 1, "decoded_token": "ab"}
        return reply

    exchange = json.loads(json.dumps(SCORES["vllm"]))
    with Server(replay(exchange), [Fault(edit=more)]) as server:
        assert load(server, merging, "vllm").score(["xa"], ["bc"]) == [Score(-1.75, 2)]


def test_vllm_writes_minus_9999_for_what_is_impossible(merging: Path):
    """vllm/entrypoints/generate/base/serving.py, clamp_prompt_logprobs."""

    def impossible(reply: Any) -> Any:
        reply["choices"][0]["prompt_logprobs"][3]["68"]["logprob"] = -9999.0
        return reply

    exchange = json.loads(json.dumps(SCORES["vllm"]))
    with Server(replay(exchange), [Fault(edit=impossible)]) as server:
        assert load(server, merging, "vllm").score(["xa"], ["bc"]) == [Score(-10000.25, 2)]


def sglang_reply(ids: Sequence[int], start: int) -> Any:
    """The last id of the vocabulary is written as 0 (`_process_input_token_logprobs`), and the first
    token's log-probability as null, wherever the list starts."""
    reply = json.loads(json.dumps(SCORES["sglang"]["reply"]))
    entries = [[-0.5, 0 if token == 258 else token, None] for token in ids[start:]]
    entries[0][0] = None
    reply["meta_info"] |= {"prompt_tokens": len(ids), "input_token_logprobs": entries}
    return reply


@pytest.mark.parametrize(("prompt", "target"), [("x", "abc"), ("ab", "ab"), ("xxab", "c")])
def test_sglang_lists_tokens_from_the_last_of_the_prompt_on(merging: Path, prompt: str, target: str):
    def answer(path: str, request: Any) -> tuple[int, Any]:
        return 200, sglang_reply(request["input_ids"], request["logprob_start_len"])

    with Server(answer) as server:
        [score] = load(server, merging).score([prompt], [target])
    tokens = len(chat.load(merging).encode_target(target))
    assert score == Score(-0.5 * tokens, tokens)


def test_a_server_that_merges_what_was_sent_is_found_out(merging: Path):
    merged = [Fault(edit=lambda reply: sglang_reply([89, 258, 68], 1))]
    with Server(replay(SCORES["sglang"]), merged) as server, pytest.raises(UserError) as caught:
        load(server, merging).score(["xa"], ["bc"])
    assert "sglang gave 2 log-probabilities, want 3; check that llm.log_probs" in str(caught.value)


def test_an_adapter_is_named_to_sglang_in_its_own_field(merging: Path):
    """SGLang takes adapters from `lora_path`, and looks at `model` for no name without a colon."""
    with Server(fake_answer) as server:
        llm = load(server, merging, adapter="mine")
        llm.score(["x"], ["a"])
        llm.generate(["x", [{"role": "user", "content": "y"}]], Sampling(4))
        assert [request.body["lora_path"] for request in server.requests] == ["mine"] * 3
        load(server, merging, "vllm", adapter="mine").score(["x"], ["a"])
        assert server.requests[-1].body["model"] == "mine"
        assert "lora_path" not in server.requests[-1].body


# -- Texts and errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_read_from_what_the_servers_write(merging: Path, name: str):
    request = TEXTS[name]["request"]
    prompt: Prompt = request.get("prompt") or request["messages"]
    with Server(replay(TEXTS[name])) as server, usage.metered() as counts:
        assert load(server, merging, name.split(",")[0]).generate([prompt], Sampling(4)) == [" on"]
    assert counts == {"server_calls": 1, "server_prompt_tokens": 2, "server_completion_tokens": 4}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("asked", ["score", "generate"])
def test_errors_are_one_line_and_tried_again_where_they_pass(merging: Path, name: str, asked: str):
    error = ERRORS[name]
    fault = Fault(error["status"], error.get("headers", {}), json.dumps(error["reply"]).encode())
    exchange = SCORES["sglang"] if asked == "score" else TEXTS["sglang, plain text"]

    def ask(script: Sequence[Fault]) -> tuple[Any, int]:
        with Server(replay(exchange), script) as server:
            llm = load(server, merging)
            try:
                found: Any = (
                    llm.score(["xa"], ["bc"]) if asked == "score" else llm.generate(["go"], Sampling(4))
                )
            except UserError as error:
                found = str(error)
            return found, len(server.requests)

    line, tries = ask([fault] * 3)
    assert tries == (3 if error["passes"] else 1)
    assert "\n" not in line
    with pytest.raises(UserError, match=error["line"]):
        raise UserError(line)
    if error["passes"]:
        assert ask([fault] * 2) == ([Score(-1.75, 2)] if asked == "score" else [" on"], 3)


# -- The order of requests -----------------------------------------------------------------------


def shared(texts: Sequence[Sequence[Any]]) -> int:
    """How much of each is the begin of the one before it: what a cache of the last prompt saves."""
    both = [takewhile(lambda pair: pair[0] == pair[1], zip(*pair)) for pair in pairwise(texts)]
    return sum(len(list(common)) for common in both)


PROMPTS = ["user 2: tea", "user 1: cats", "user 2: tin", "user 1: cars", "user 10", "user 1: cats"]
TARGETS = ["a", "b", "c", "d", "e", "f"]


def test_scores_are_asked_in_the_order_that_shares_most(tiny: Path):
    with Server(fake_answer) as server:
        scores = load(server, tiny, concurrency=1).score(PROMPTS, TARGETS)
        sent = [request.body["input_ids"] for request in server.requests]
    assert scores == [fake_score(tiny, *pair) for pair in zip(PROMPTS, TARGETS)]
    assert shared(sent) == max(shared(order) for order in permutations(sent))
    codec = chat.load(tiny)
    assert shared(sent) > shared([codec.encode(prompt) for prompt in PROMPTS])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_texts_are_asked_in_the_order_that_shares_most(tiny: Path, temperature: float):
    with Server(fake_answer) as server:
        llm = load(server, tiny, concurrency=1)
        texts = llm.generate(PROMPTS, Sampling(8, temperature=temperature, seed=5))
        sent = [request.body["prompt"] for request in server.requests]
    numbers = ["5", "5", "5", "5", "5", "6"] if temperature else [""] * 6
    assert texts == [f"{prompt}?{number}" for prompt, number in zip(PROMPTS, numbers)]
    assert shared(sent) == max(shared(order) for order in permutations(sent))
    assert shared(sent) > shared(PROMPTS)
