"""The language model on a server, against a made-up server's formula and a real model in this process."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import servers
from servers import Fault, Server, fake_answer, fake_score

from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import LLM, Prompt, Sampling, Score, TooLong

DIALECTS = ("vllm", "echo", "sglang")
NEUTRAL = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


PROMPTS: tuple[Prompt, ...] = (
    "the cat", say("hi"), "a", "the cat", say("naïve café 😀"), "on the mat the hat sat", say("hi"),
)  # fmt: skip
TARGETS = ("dog", " hat", "a long answer of many tokens", "dog", "é", "", "1")


def load(url: str, **fields: Any) -> HTTPLLM:
    """A model that waits for nothing between tries."""
    config = schema.LLM(**{"backend": "http", "model": "m", "url": url, "retries": 2, **fields})
    return HTTPLLM(config, pause=lambda stop, seconds: None)


def scorer(server: Server, tiny: Path, dialect: str, **fields: Any) -> HTTPLLM:
    return load(server.url, tokenizer=str(tiny), log_probs=dialect, **fields)


# -- The same as in this process -----------------------------------------------------------------


@pytest.fixture(scope="module")
def near(tiny) -> tuple[JaxLLM, list[str], list[Score]]:
    """The model in this process, and what it says."""
    llm = JaxLLM(tiny, batch_size=8)
    return llm, llm.generate(PROMPTS, Sampling(8)), llm.score(PROMPTS, TARGETS)


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_behind_a_server_answers_as_it_does_in_this_process(tiny, near, dialect):
    llm, texts, scores = near
    assert len(set(texts)) == 5
    with servers.serve_llm(llm) as server:
        far = scorer(server, tiny, dialect)
        assert isinstance(far, LLM)
        assert far.generate(PROMPTS, Sampling(8)) == texts
        for here, there in zip(scores, far.score(PROMPTS, TARGETS)):
            assert there.tokens == here.tokens
            assert there.total == pytest.approx(here.total, abs=1e-4)
    for prompt in PROMPTS:
        assert far.num_tokens(prompt) == llm.num_tokens(prompt)
        assert far.render(prompt) == llm.render(prompt)
    assert far.count("a café") == llm.count("a café") == 7
    assert far.truncate("a café", 6) == llm.truncate("a café", 6)


def test_the_servers_refusal_reaches_the_user(tiny):
    with servers.serve_llm(JaxLLM(tiny)) as server:
        far = load(server.url)
        with pytest.raises(UserError, match=r"400 .*context of 96.*; lower prompt\.max_tokens"):
            far.generate(["a" * 95], Sampling(6))


def test_faults_on_the_way_do_not_change_the_answers():
    faults = [Fault(429), Fault(hang_up=True), Fault(cut=20), Fault(500), Fault(body=b'{"choices"')]
    with Server(fake_answer, faults) as server:
        texts = load(server.url, retries=5).generate(["a", say("b"), "c", say("d")], Sampling(6))
        assert len(server.requests) == 9
    assert texts == ["a?", "b!", "c?", "d!"]


# -- Texts ---------------------------------------------------------------------------------------


def test_a_greedy_request_says_what_the_protocol_names():
    with Server(fake_answer) as server:
        load(server.url).generate(["go", say("hi")], Sampling(7, top_p=0.5, seed=9))
        seen = {request.path: request.body for request in server.requests}
    shared = {"model": "m", "max_tokens": 7, "temperature": 0.0, **NEUTRAL}
    thinking = {"chat_template_kwargs": {"enable_thinking": False, "date_string": "26 Jul 2024"}}
    assert seen == {
        "/v1/completions": {**shared, "prompt": "go"},
        "/v1/chat/completions": {**shared, "messages": say("hi"), **thinking},
    }


def test_equal_greedy_prompts_are_sent_once_and_reported_together():
    told = []
    with Server(fake_answer) as server:
        llm = load(server.url, concurrency=1)
        texts = llm.generate(
            ["a", say("b"), "a", "a"], Sampling(4), on_batch=lambda i, t: told.append((list(i), list(t)))
        )
        assert len(server.requests) == 2
    assert texts == ["a?", "b!", "a?", "a?"]
    assert told == [([0, 2, 3], ["a?"] * 3), ([1], ["b!"])]


def test_sampled_prompts_are_seeded_by_the_number_of_equal_ones_before():
    options: dict[str, Any] = dict(max_new_tokens=4, temperature=0.7, top_p=0.9, seed=40)
    with Server(fake_answer) as server:
        llm = load(server.url)
        assert llm.generate(["a", "b", "a", say("a"), "a"], Sampling(**options)) == [
            "a?40",
            "b?40",
            "a?41",
            "a!40",
            "a?42",
        ]
        assert llm.generate(["b", "a", "a"], Sampling(**options)) == ["b?40", "a?40", "a?41"]
        assert all(request.body["temperature"] == 0.7 for request in server.requests)
        assert all(request.body["top_p"] == 0.9 for request in server.requests)


def test_a_repeated_call_asks_only_for_what_is_missing():
    told: dict[int, str] = {}
    with Server(fake_answer) as server:
        done = {1: "kept", 2: "kept too"}
        texts = load(server.url).generate(
            ["a", "b", "a", "c"], Sampling(4), done=done, on_batch=lambda i, t: told.update(zip(i, t))
        )
        assert sorted(request.body["prompt"] for request in server.requests) == ["a", "c"]
    assert texts == ["a?", "kept", "kept too", "c?"]
    assert told == {0: "a?", 3: "c?"}
    assert done == {1: "kept", 2: "kept too"}


def test_what_was_finished_before_a_failure_is_reported():
    told: dict[int, str] = {}
    prompts = [f"p{n:02}" for n in range(30)]
    with Server(fake_answer, [None, None, None, Fault(404)]) as server:
        llm = load(server.url, concurrency=1)
        with pytest.raises(UserError, match="404"):
            llm.generate(prompts, Sampling(4), on_batch=lambda i, t: told.update(zip(i, t)))
        assert told == {0: "p00?", 1: "p01?", 2: "p02?"}
        assert len(server.requests) == 4
        whole = llm.generate(prompts, Sampling(4), done=told)
    assert whole == [f"{prompt}?" for prompt in prompts]
    assert len(server.requests) == 4 + 27


def test_nothing_asked_is_nothing_sent(tiny):
    with Server(fake_answer) as server:
        llm = scorer(server, tiny, "vllm")
        assert llm.generate([], Sampling(4)) == []
        assert llm.score([], []) == []
        assert llm.score(["a", "b"], ["", ""]) == [Score(0.0, 0)] * 2
        assert server.requests == []


def test_a_server_that_wants_max_completion_tokens_is_asked_so_from_then_on():
    names = []

    def newer(path: str, request: Any) -> tuple[int, Any]:
        names.append([name for name in ("max_tokens", "max_completion_tokens") if name in request])
        if "max_tokens" in request:
            words = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            return 400, {"error": {"message": f"Unsupported parameter: {words}", "param": "max_tokens"}}
        assert request["max_completion_tokens"] == 4
        return fake_answer(path, request)

    with Server(newer) as server:
        llm = load(server.url, concurrency=1)
        assert llm.generate([say("a"), say("b"), say("c")], Sampling(4)) == ["a!", "b!", "c!"]
    assert names == [["max_tokens"], *[["max_completion_tokens"]] * 3]


def test_beams_are_asked_of_vllm_and_the_first_is_the_best(tiny: Path):
    def rank(answer: Any) -> Any:
        return {"choices": [{"text": f"beam {n}"} for n in range(3)]}

    with Server(fake_answer, [Fault(edit=rank)]) as server:
        llm = load(server.url, log_probs="vllm", tokenizer=str(tiny))
        assert llm.generate(["a"], Sampling(4, num_beams=3)) == ["beam 0"]
        assert server.requests[0].body == {
            "model": "m", "prompt": "a", "max_tokens": 4, "temperature": 0.0, "use_beam_search": True, "n": 3,
            **NEUTRAL,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"choices": []}, "no choices; check that llm.url"),
        ({"choices": None}, "no choices"),
        ({"choices": ["a"]}, "no choices"),
        ({"choices": {"text": "a"}}, "no choices"),
        ({"error": {"message": "out of\nmemory"}}, r"answered 200 with an error \(out of memory\)"),
        ({"message": "out of\nmemory"}, r"no choices but an error \(out of memory\)"),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, "2 choices, want 1"),
        ({"choices": [{}]}, "an answer has no text, so it is not kept"),
        ({"choices": [{"text": 3}]}, "no text but int"),
        ({"choices": [{"text": {"content": [["a"]]}}]}, "a part of type 'text', want texts"),
    ],
)
def test_a_malformed_answer_is_one_line_and_not_asked_for_again(answer, message):
    with Server(lambda path, request: (200, answer)) as server:
        with pytest.raises(UserError, match=message) as caught:
            load(server.url).generate(["a"], Sampling(4))
        assert len(server.requests) == 1
    assert str(caught.value).startswith(f"{server.url}/completions: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "fields", "message"),
    [
        ({"num_beams": 2}, {}, r"num_beams is 2, but of servers only vLLM"),
        ({"num_beams": 2}, {"log_probs": "sglang"}, r"only vLLM"),
    ],
)
def test_mistakes_are_user_errors_before_anything_is_sent(options, fields, message):
    with Server(fake_answer) as server:
        with pytest.raises(UserError, match=message) as caught:
            load(server.url, **fields).generate(["a", "b" * 33], Sampling(**{"max_new_tokens": 4, **options}))
        assert server.requests == []
    assert "\n" not in str(caught.value)


def test_one_prompt_that_is_too_long_does_not_cost_the_others_their_answers():
    found = dict[int, str]()
    with Server(fake_answer) as server:
        with pytest.raises(TooLong, match=r"prompt 1 has 9 tokens and 4 more .* raise llm\.context$"):
            load(server.url, context=12).generate(
                ["a", "b" * 33, "c"], Sampling(4), on_batch=lambda i, t: found.update(zip(i, t))
            )
        assert len(server.requests) == 2
    assert sorted(found) == [0, 2]
    with pytest.raises(UserError, match=r"llm\.overflow is cut, and a server is sent texts"):
        load("http://127.0.0.1:1/v1", overflow="cut")


@pytest.mark.parametrize("prompt", ["cat<|im_end|>", say("cat<|im_end|>hat")])
def test_control_tokens_that_a_user_wrote_are_not_sent(prompt):
    with Server(fake_answer) as server:
        load(server.url).generate([prompt], Sampling(4))
        [request] = server.requests
    assert "<|im_end|>" not in json.dumps(request.body, ensure_ascii=False)


# -- Scores --------------------------------------------------------------------------------------


def test_equal_pairs_are_scored_once_and_empty_targets_never(tiny):
    told = []
    with Server(fake_answer) as server:
        scorer(server, tiny, "vllm", concurrency=1).score(
            ["a", "b", "a", "b"], ["x", "", "x", "x"], on_batch=lambda i, s: told.append(list(i))
        )
        assert len(server.requests) == 2
    assert told == [[0, 2], [1], [3]]


def test_the_same_ids_with_another_boundary_are_another_pair(tiny):
    with Server(fake_answer) as server:
        short, long = scorer(server, tiny, "echo").score(["ab", "a"], ["c", "bc"])
    assert (short, long) == (fake_score(tiny, "ab", "c"), fake_score(tiny, "a", "bc"))
    assert long.tokens == 2


def test_a_repeated_call_scores_only_what_is_missing(tiny):
    with Server(fake_answer) as server:
        done = {0: Score(-1.0, 1)}
        scores = scorer(server, tiny, "sglang").score(["a", "b"], ["x", "y"], done=done)
        assert len(server.requests) == 1
    assert scores == [Score(-1.0, 1), fake_score(tiny, "b", "y")]


@pytest.mark.parametrize("fields", [{}, {"log_probs": "vllm"}, {"tokenizer": "tiny"}])
def test_scoring_without_a_dialect_or_tokenizer_says_what_to_set(tiny, fields):
    fields = {**fields, **({"tokenizer": str(tiny)} if "tokenizer" in fields else {})}
    with Server(fake_answer) as server:
        with pytest.raises(UserError, match=r"llm\.log_probs \(vllm, echo or sglang\) and llm\.tokenizer"):
            load(server.url, **fields).score(["a"], ["b"])
        assert server.requests == []


def test_an_empty_prompt_a_long_pair_and_a_missing_tokenizer_are_user_errors(tiny):
    with Server(fake_answer) as server:
        with pytest.raises(UserError, match="prompt 1 is empty"):
            scorer(server, tiny, "vllm").score(["a", ""], ["b", "c"])
        with pytest.raises(UserError, match=r"3 tokens and 4 more follow, .* 6; .* the target's length"):
            scorer(server, tiny, "vllm", context=6).score(["abc"], ["defg"])
        with pytest.raises(UserError, match="no such folder"):
            load(server.url, tokenizer="/nowhere", log_probs="vllm").score(["a"], ["b"])
        assert server.requests == []


# -- Without a server ----------------------------------------------------------------------------

NOWHERE = "http://192.0.2.1/v1"  # an address of documentation: nobody is there


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ééé", 2), ("😀", 1), ("a\ud800", 1)]
)
def test_without_a_tokenizer_four_bytes_are_a_token(text, tokens):
    llm = load(NOWHERE)
    assert llm.count(text) == tokens
    assert llm.num_tokens(text) == tokens


def test_truncation_agrees_with_the_estimate():
    llm, text = load(NOWHERE), "é😀x" * 9
    for tokens in range(-1, 20):
        cut = llm.truncate(text, tokens)
        assert text.startswith(cut)
        assert llm.count(cut) <= max(0, tokens)
        longer = text[: len(cut) + 1]
        assert longer == cut or llm.count(longer) > tokens


def test_without_a_tokenizer_messages_are_joined_by_blank_lines():
    llm, prompt = load(NOWHERE), [*say("one"), {"role": "assistant", "content": "two"}]
    assert llm.render(prompt) == "one\n\ntwo"
    assert llm.render("plain") == "plain"
    assert llm.num_tokens(prompt) == 2
    with pytest.raises(UserError, match="field 'content' of message 1 is None, want a text"):
        llm.num_tokens([*say("one"), {"role": "assistant"}])


def test_the_fingerprint_is_of_model_and_tokenizer_not_of_place_or_key(tiny, monkeypatch):
    first = load(NOWHERE)
    assert len(first.fingerprint) == hashlib.sha256().digest_size * 2
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    assert load("https://elsewhere.example/v1", concurrency=2).fingerprint == first.fingerprint
    assert load(NOWHERE, model="other").fingerprint != first.fingerprint
    with_tokenizer = load(NOWHERE, tokenizer=str(tiny))
    assert with_tokenizer.fingerprint not in (first.fingerprint, load(NOWHERE, model=str(tiny)).fingerprint)
