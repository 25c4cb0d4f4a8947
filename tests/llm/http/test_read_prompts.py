"""What a server did not read: prompts that it cuts to its context, and system turns that it leaves out."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from servers import Server

from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import Sampling
from pbr_jax.llm.tokens import chat

LONG = "why is the sky blue and the grass green? " * 40
ORDER = "Answer like a pirate, in three words."
ASKED = [{"role": "system", "content": ORDER}, {"role": "user", "content": LONG}]


def load(server: Server, **fields: Any) -> HTTPLLM:
    given = {"backend": "http", "model": "m", "url": server.url, "retries": 0, "concurrency": 1, **fields}
    return HTTPLLM(schema.LLM(**given), pause=lambda stop, seconds: None)


def counting(read: Any, details: Any = None) -> Any:
    """A server that says how many tokens of a prompt it read: `read(messages)`."""

    def answer(path: str, request: Any) -> tuple[int, Any]:
        told = {"prompt_tokens": read(request["messages"]), "completion_tokens": 2}
        told |= {"prompt_tokens_details": details} if details else {}
        return 200, {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}], "usage": told}

    return answer


def size(messages: Any) -> int:
    """Of texts, in tokens of four characters."""
    return sum(len(message["content"]) for message in messages) // 4


@pytest.mark.parametrize("read", [32, 64, 128])
def test_an_answer_to_a_part_of_the_prompt_is_not_kept(file: Path, read: int):
    message = rf"the server read {read} of about \d+ tokens of a prompt.* num_ctx"
    with (
        Server(counting(lambda messages: min(size(messages), read))) as server,
        pytest.raises(UserError, match=message),
    ):
        Cached(load(server), file).generate([ASKED], Sampling(4))
    with Server(counting(size)) as server:
        assert Cached(load(server), file).generate([ASKED], Sampling(4)) == ["fine"]
        assert server.requests


@pytest.mark.parametrize("tokens", [0.5, 0.85])
def test_with_the_tokenizer_a_tenth_that_is_missing_is_seen(tiny: Path, tokens: float):
    whole = chat.load(tiny).num_tokens(ASKED)
    read = int(tokens * whole)
    with Server(counting(lambda messages: read)) as server:
        llm = load(server, tokenizer=str(tiny))
        with pytest.raises(UserError, match=rf"read {read} of {whole} tokens"):
            llm.generate([ASKED], Sampling(4))
    with Server(counting(lambda messages: whole - 20)) as server:
        assert load(server, tokenizer=str(tiny)).generate([ASKED], Sampling(4)) == ["fine"]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (counting(lambda messages: 0), {}),  # it does not count
        (counting(lambda messages: 7), {}),  # it counts what it had not cached
        (counting(lambda messages: 60, {"cached_tokens": 380}), {}),
        (counting(lambda messages: 64), {"check_prompts": False}),
    ],
)
def test_counts_that_mean_something_else_are_no_fault(answer: Any, fields: dict[str, Any]):
    with Server(answer) as server:
        assert load(server, **fields).generate([ASKED], Sampling(4)) == ["fine"]


# -- System turns --------------------------------------------------------------------------------

MERGED = [{"role": "user", "content": f"{ORDER}\n\n{LONG}"}]
REFUSALS = (
    "System role not supported", "Only user and assistant roles are supported, not role 'system'",
    "Conversation roles must alternate user/assistant/user/assistant/...", "system messages are not allowed",
)  # fmt: skip


@pytest.mark.parametrize("words", REFUSALS)
def test_a_refused_system_turn_stands_in_the_users(words: str, capsys: pytest.CaptureFixture[str]):
    def answer(path: str, request: Any) -> tuple[int, Any]:
        if request["messages"][0]["role"] == "system":
            return 400, {"object": "error", "message": words, "code": 400}
        return counting(size)(path, request)

    with Server(answer) as server:
        assert load(server).generate([ASKED, [*ASKED, ASKED[1]]], Sampling(4)) == ["fine", "fine"]
        sent = [request.body["messages"] for request in server.requests]
    assert sent == [ASKED, MERGED, [*MERGED, ASKED[1]]] or sent[1] == [*MERGED, ASKED[1]]
    assert len(sent) == 3
    assert capsys.readouterr().err.count("the server takes no system turn") == 1


def test_a_system_turn_that_is_left_out_is_found_by_the_servers_counts(capsys: pytest.CaptureFixture[str]):
    """It reads the user's turns alone, without a word."""
    with Server(counting(lambda messages: size([m for m in messages if m["role"] == "user"]))) as server:
        assert load(server).generate([ASKED, [*ASKED, ASKED[1]]], Sampling(4)) == ["fine", "fine"]
        sent = [request.body["messages"] for request in server.requests]
    short = {"role": "user", "content": "Hello"}
    assert sent[1:3] == [[ASKED[0], short], [short]]  # of which it counts the same
    assert [messages[0] for messages in sent[3:]] == [MERGED[0]] * 2
    assert capsys.readouterr().err.count("the server reads no system turn") == 1


@pytest.mark.parametrize("most", [10**6, 300])
def test_a_system_turn_that_is_read_stays_where_it_is(most: int):
    """Also where the server reads no more than `most` tokens of a prompt."""
    with Server(counting(lambda messages: min(size(messages) - 5, most))) as server:
        load(server).generate([ASKED, [*ASKED, ASKED[1]]], Sampling(4))
        roles = [request.body["messages"][0]["role"] for request in server.requests]
    assert sorted(roles) == ["system", "system", "system", "user"]


def test_a_template_that_leaves_out_system_turns_says_so_before(tiny: Path, tmp_path: Path):
    template = "{% for m in messages %}{% if m.role == 'user' %}[u]{{ m.content }}{% endif %}{% endfor %}[a]"
    shutil.copytree(tiny, tmp_path / "deaf")
    (tmp_path / "deaf" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    text = chat.load(tmp_path / "deaf").render(ASKED)
    assert text == f"[u]{MERGED[0]['content']}[a]"
    with Server(counting(lambda messages: len(text))) as server:
        load(server, tokenizer=str(tmp_path / "deaf")).generate([ASKED], Sampling(4))
        assert server.requests[-1].body["messages"] == MERGED
