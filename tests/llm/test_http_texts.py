"""Which answers of a server are whole, and which are never kept."""

from pathlib import Path
from typing import Any

import pytest
from servers import Fault, Server

from pbr_jax import config as schema
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http_backend import HTTPLLM
from pbr_jax.types import UserError

MESSAGES = [{"role": "user", "content": "hi"}]


def load(server: Server, **fields: Any) -> HTTPLLM:
    config = schema.LLM(backend="http", model="m", url=server.url, retries=0, concurrency=1, **fields)
    return HTTPLLM(config)


def answered(text: Any, reason: str | None, completion: int | None = None, thought: int = 0) -> Any:
    """An answer as servers give it."""
    usage: Any = {"prompt_tokens": 5, "completion_tokens": completion}
    usage |= {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"choices": [choice]} | ({} if completion is None else {"usage": usage})


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
    "a tool": (answered(None, "tool_calls", 9), "finish_reason 'tool_calls', want stop or length"),
    "aborted": (answered("ye", "abort", 2), "finish_reason 'abort'"),
    "odd": ({"choices": [{"message": {"content": "a"}, "finish_reason": ["stop"]}]}, "finish_reason"),
    "too long": (answered("x" * (128 * 16 + 1), "stop"), "an answer has 2049 bytes, and at most 16 tokens"),
    "no limit kept": (answered("x" * 90, "stop", 33), "90 bytes and 33 tokens, and at most 16"),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("exact", [True, False])
def test_a_whole_answer_is_taken(tiny: Path, name: str, exact: bool):
    if name == "as many tokens that join into fewer" and not exact:
        pytest.skip("without a tokenizer a token has at least a byte")
    fields = {"tokenizer": str(tiny)} if exact else {}
    answer = WHOLE[name]
    with Server(lambda path, request: (200, answer)) as server:
        texts = load(server, **fields).generate([MESSAGES], max_new_tokens=16)
    assert texts == [answer["choices"][0]["message"]["content"]]


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
            llm.generate([MESSAGES, [*MESSAGES, *MESSAGES]], max_new_tokens=16)
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
        assert llm.generate(["a"], max_new_tokens=6, num_beams=3) == ["beam 0"]
