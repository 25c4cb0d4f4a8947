"""Which answers of a server are whole, and which are never kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Fault, Server

from pbr_jax import ask, run
from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.config import override
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import Sampling

MESSAGES = [{"role": "user", "content": "hi"}]


def load(server: Server, **fields: Any) -> HTTPLLM:
    config = schema.LLM(backend="http", model="m", url=server.url, retries=0, concurrency=1, **fields)
    return HTTPLLM(config)


def answered(text: Any, reason: Any, completion: int | None = None, thought: int = 0, **beside: Any) -> Any:
    """An answer as servers give it; `beside`: further fields of the message."""
    usage: Any = {"prompt_tokens": 5, "completion_tokens": completion}
    usage |= {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    choice = {"message": {"role": "assistant", "content": text, **beside}, "finish_reason": reason}
    return {"choices": [choice]} | ({} if completion is None else {"usage": usage})


def part(text: str, kind: str = "text") -> dict[str, Any]:
    """A part of a content that is a list."""
    return {"type": kind, "text": text}


UNCOUNTED = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
BROKEN_OFF = {"message": {"content": "ye"}, "error": {"code": 502, "message": "upstream\nis gone"}}


# The limit is 16 tokens; the tiny model's tokens are bytes.
WHOLE = {
    "stopped": answered("yes", "stop", 2),
    "stopped at once": answered("", "stop", 1),
    "no reason": answered("yes", None, 2),
    "TGI's": answered("yes", "eos_token", 2),
    "stopped after a thought": answered("yes", "stop", 400, 398),
    "all that was asked for": answered("x" * 40, "length", 16),
    "the same after a thought": answered("x" * 40, "length", 116, 100),
    "without usage": answered("x" * 16, "length"),
    "as many tokens that join into fewer": answered("x" * 9, "length"),
    "128 bytes a token": answered(" " * 128 * 16, "length", 16),
    "whitespace": answered(" \n", "stop", 3),
    "not counted": answered("x" * 40, "length") | UNCOUNTED,
    "0 tokens of a text": answered("x" * 40, "length", 0),
    "thinking counted apart": answered("yes", "stop", 2, 300),
    "no usage": answered("yes", "stop") | {"usage": None},
    "another index": {"choices": [answered("yes", "stop")["choices"][0] | {"index": 1, "logprobs": None}]},
    "SGLang's": answered("yes", {"type": "stop", "matched": 2}, 2),
    "beside its thoughts": answered("yes", "stop", 400, reasoning_content="long", tool_calls=[]),
}
SAID = {
    "a part": answered([part("yes")], "stop", 2),
    "parts": answered([part("y"), part("es", "output_text")], "stop", 2),
    "a part behind thoughts": answered(
        [{"type": "thinking", "thinking": [part("hm")]}, part("no", "reasoning"), part("yes")], "stop", 6
    ),
    "a part beside a thought of the same type": answered(
        [part("hm") | {"thought": True}, part("yes")], "stop", 6
    ),
    "parts that are null or lack a text": answered(
        [None, part("yes"), {"type": "text", "text": None}], "stop", 2
    ),
    "a part without a list": answered(part("yes"), "stop", 2),
    "behind the mark in its thoughts": answered("", "stop", 9, reasoning="<think>no</think>yes"),
    "no error": answered("yes", "stop", 2) | {"error": None},
    "an empty error": answered("yes", "stop", 2) | {"error": {"code": None, "message": ""}},
}
NOT = {
    "cut off": (answered("ye", "length", 2), r"finish_reason length\) after 2 tokens, and 16"),
    "all thought": (answered("", "length", 16, 16), r"after 0 tokens"),
    "half thought": (answered("yes", "length", 16, 8), r"after 8 tokens"),
    "empty": (answered("", "length", 16), r"after 16 tokens"),
    "no content": (answered(None, "length", 16), r"after 16 tokens"),
    "no usage, short": (answered("x" * 5, "length"), r"after 5 bytes"),
    "no usage, empty": (answered("", "length"), r"after 0 bytes"),
    "filtered": (answered("partly", "content_filter", 3), "withheld by a filter"),
    "filtered whole": (answered(None, "content_filter"), "withheld by a filter"),
    "a refusal": (answered(None, "stop", 2, refusal="No."), r"model refuses to answer \('No\.'\); change"),
    "a refusal as a part": (
        answered([part("a"), {"type": "refusal", "refusal": "No."}], "stop", 2), "the model refuses to answer"
    ),
    "a tool": (answered(None, "tool_calls", 9), "finish_reason 'tool_calls', want stop or length"),
    "aborted": (answered("ye", "abort", 2), "finish_reason 'abort'"),
    "a reason without its type": (answered("a", {"matched": 2}), "finish_reason .*, want stop or length"),
    "odd": ({"choices": [{"message": {"content": "a"}, "finish_reason": ["stop"]}]}, "finish_reason"),
    "too long": (answered("x" * (128 * 16 + 1), "stop"), "an answer has 2049 bytes, and at most 16 tokens"),
    "no limit kept": (answered("x" * 90, "stop", 33), "90 bytes and 33 tokens, and at most 16"),
    "thoughts alone": (
        answered(None, "stop", 6, reasoning_content="long"),
        "no text but reasoning_content, after 6 tokens, so it is not kept; turn the model's thinking off",
    ),
    "OpenRouter's thoughts alone": (answered("", "stop", reasoning="long"), "no text but reasoning, so"),
    "thoughts and a line": (answered("\n\n", "stop", 3, reasoning="long"), "no text but reasoning"),
    "thoughts and a line, cut off": (answered("\n", "length", 16, reasoning="long"), "cut off"),
    "thoughts in another field": (answered("\n", "stop", thinking_blocks=["hm"]), "but thinking_blocks"),
    "thoughts in a third": (answered("\n", "stop", reasoning_text="long"), "no text but reasoning_text"),
    "thoughts that are parts": (answered([part("hm", "thinking")], "stop", 6), "no text, after 6 tokens"),
    "thoughts that were kept back": (answered("", "stop", 300, 300), "no text, after 300 tokens"),
    "unclosed thoughts alone": (answered("", "stop", 9, thinking="<think>hm"), "no text but thinking"),
    "nothing of 6 tokens": (answered("", "stop", 6), "no text, after 6 tokens"),
    "less than the tokens": (answered("\n", "STOP", 6), "no text, after 6 tokens"),
    "no content and no count": (answered(None, "stop"), "an answer has no text, so it is not kept"),
    "no content and counts of 0": (answered("", "stop") | UNCOUNTED, "an answer has no text, so"),
    "a tool in silence": (
        answered(None, "stop", 9, tool_calls=[{"id": "x"}]), "no text but tool_calls.* parser of tool calls"
    ),
    "a part that is no text": (
        answered([part("a"), {"type": "image_url", "image_url": {}}], "stop", 2), "a part of type 'image_url'"
    ),
    "a part without text": (answered({"type": "image"}, "stop", 2), "a part of type 'image', want texts"),
    "a part that is none": (answered([3], "stop", 2), "a part of type 'text', want texts"),
    "an error beside it": (
        answered("ye", "stop", 2) | {"error": {"message": "out of\nmemory"}},
        r"answered 200 with an error \(out of memory\)",
    ),
    "an error that is a text": (answered("ye", "stop", 2) | {"error": "overloaded"}, r"\(overloaded\)"),
    "an error in it": ({"choices": [BROKEN_OFF]}, r"broken off by an error \(upstream is gone\); run again"),
}  # fmt: skip
REASONS = {
    "stop": (
        "STOP", " Stop", "eos", "EOS_TOKEN", "end_turn", "stop-sequence", "stop_token", "COMPLETE", "null",
        "FINISH_REASON_STOP", "FinishReason.STOP", "endTurn", "eos_token_id", "None",
    ),
    "length": ("LENGTH", "max_tokens", "MAX TOKENS", "model_length", "FINISH_REASON_MAX_TOKENS", "maxTokens"),
    "withheld by a filter": ("SAFETY", "CONTENT_FILTER", "content-filter", "Recitation"),
    "want stop or length": ("error", "OTHER", "cancelled", "tool_use", "insufficient_system_resource"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("exact", [True, False])
def test_a_whole_answer_is_taken(tiny: Path, name: str, exact: bool):
    if name == "as many tokens that join into fewer" and not exact:
        pytest.skip("without a tokenizer a token has at least a byte")
    fields = {"tokenizer": str(tiny)} if exact else {}
    answer = WHOLE[name]
    with Server(lambda path, request: (200, answer)) as server:
        texts = load(server, **fields).generate([MESSAGES], Sampling(16))
    assert texts == [answer["choices"][0]["message"]["content"]]


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("is_text", [True, False])
def test_a_text_is_found_where_a_server_puts_it(name: str, is_text: bool):
    choice = SAID[name]["choices"][0]
    answer = SAID[name] | {"choices": [choice | {"text": choice["message"]}]}
    with Server(lambda path, request: (200, answer)) as server:
        assert load(server).generate(["hi" if is_text else MESSAGES], Sampling(16)) == ["yes"]


@pytest.mark.parametrize("meaning", REASONS)
def test_the_end_of_an_answer_is_known_in_each_servers_words(meaning: str):
    def answer(path: str, request: Any) -> Any:
        return 200, answered("x" * 40, request["messages"][0]["content"], 16)

    with Server(answer) as server:
        llm = load(server)
        for word in REASONS[meaning]:
            asked: Any = [[{"role": "user", "content": word}]]
            if meaning in ("stop", "length"):
                assert llm.generate(asked, Sampling(16)) == ["x" * 40]
            if meaning != "stop":
                with pytest.raises(UserError, match="cut off" if meaning == "length" else meaning):
                    llm.generate(asked, Sampling(24))


@pytest.mark.parametrize(
    "error",
    [
        {"code": "429"}, {"code": "rate_limit_exceeded"}, {"code": None, "type": "overloaded_error"},
        {"status": "UNAVAILABLE"},
    ],
)  # fmt: skip
def test_an_error_that_passes_is_asked_again_under_status_200_too(error: dict[str, Any]):
    busy = {"error": {"message": "slow down", **error}, "choices": []}
    with Server(
        lambda path, request: (200, answered("yes", "stop", 2)), [Fault(edit=lambda _: busy)]
    ) as server:
        config = schema.LLM(backend="http", model="m", url=server.url, retries=1, concurrency=1)
        llm = HTTPLLM(config, pause=lambda stop, seconds: None)
        assert llm.generate([MESSAGES], Sampling(16)) == ["yes"]
        assert len(server.requests) == 2


@pytest.mark.parametrize("name", NOT)
@pytest.mark.parametrize("exact", [True, False])
def test_an_answer_that_is_not_whole_is_an_error_and_not_in_the_cache(
    tiny: Path, file: Path, name: str, exact: bool
):
    answer, message = NOT[name]
    good = answered("good", "stop", 1)
    fields = {"tokenizer": str(tiny)} if exact else {}
    with Server(lambda path, request: (200, answer), [Fault(edit=lambda _: good)]) as server:
        llm = Cached(load(server, **fields), file)
        with pytest.raises(UserError, match=message) as caught:
            llm.generate([MESSAGES, [*MESSAGES, *MESSAGES]], Sampling(16))
    assert str(caught.value).startswith(f"{server.url}/chat/completions: ")
    assert "\n" not in str(caught.value)
    export = file.with_name("export.jsonl")
    assert Answers(file).export(export) == 1
    assert "good" in export.read_text()


def test_of_several_beams_the_usage_is_of_all(tiny: Path):
    def answer(path: str, request: Any) -> Any:
        choices = [{"text": f"beam {n}", "finish_reason": "length"} for n in range(3)]
        return 200, {"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 18}}

    with Server(answer) as server:
        llm = load(server, log_probs="vllm", tokenizer=str(tiny))
        assert llm.generate(["a"], Sampling(6, num_beams=3)) == ["beam 0"]


def test_answers_are_read_behind_their_thinking_in_a_run_and_for_one_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tweets: Callable[..., Path]
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    root = write_tweets({f"u{n}": [f"i love tea day {n}", "cats"] for n in range(3)})
    replies = iter(["<think>\nhm\n</think>\n\nTea at noon", "hm</think>Milk", "[THINK]and on", "<think>on"])

    def answer(path: str, request: Any) -> Any:
        return 200, answered(next(replies), "stop")

    with Server(answer) as server:
        config = override(
            schema.Config(),
            {
                "benchmark.name": "lamp_7", "benchmark.root": str(root), "retrieve.method": "recency",
                "eval.resamples": 10, "llm.backend": "http", "llm.model": "m", "llm.url": server.url,
                "llm.concurrency": 1,
            },
        )  # fmt: skip
        results = run(config, tmp_path / "out")
        assert [line["prediction"] for line in results.records()] == ["Tea at noon", "Milk", ""]
        assert results.values["counts"]["unfinished_thinking"] == 1
        assert any(note.startswith("1 of 3 answers end inside") for note in results.values["notes"])
        with pytest.raises(UserError, match="answer ends inside its thinking; raise"):
            ask(tmp_path / "out", "u1", "what to drink?")
