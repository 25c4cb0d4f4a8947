"""Stop strings on a server: sent, kept, and cut here where the server does not know them."""

from typing import Any

import pytest
import servers
from servers import Fault, Server, fake_answer
from test_http_requests import load, say

from pbr_jax.base.types import UserError
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.llm.protocol import Sampling

STOP = Sampling(8, stop=("\nQ:", "é"))


def knowing(path: str, request: Any) -> tuple[int, Any]:
    """As servers do it: the text before the stop string, and tokens counted with it."""
    text = request.get("prompt") or request["messages"][-1]["content"]
    text = min((text.partition(one)[0] for one in request.get("stop", [])), key=len, default=text)
    choice = {"text": text} if "prompt" in request else {"message": {"content": text}}
    return 200, {"choices": [{**choice, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}


def test_a_request_has_the_stop_strings_and_none_has_them_without():
    with Server(fake_answer) as server:
        llm = load(server)
        llm.generate(["go", say("hi")], STOP)
        llm.generate(["go", say("hi")], Sampling(8))
        seen = [request.body.get("stop") for request in server.requests]
    assert seen == [["\nQ:", "é"]] * 2 + [None] * 2


@pytest.mark.parametrize("answer", [knowing, fake_answer])
def test_answers_are_cut_whether_the_server_cuts_them_or_not(answer: Any):
    with Server(answer) as server:
        texts = load(server).generate(["a b\nQ: c", say("naïve café\nQ:"), say("plain")], STOP)
    assert texts == ["a b", "naïve caf", "plain" if answer is knowing else "plain!"]


def test_an_answer_that_begins_with_a_stop_string_is_empty_and_is_refused_without_one():
    with Server(knowing) as server:
        assert load(server).generate(["\nQ: c", say("é")], STOP) == ["", ""]
    lost = Fault(edit=lambda answer: {**answer, "choices": [{"text": "", "finish_reason": "stop"}]})
    with Server(knowing, [lost]) as server, pytest.raises(UserError, match="no text, after 7 tokens"):
        load(server).generate(["a"], Sampling(8))


@pytest.mark.parametrize(
    "words", ["Unsupported parameter: 'stop' is not supported with this model.", "Invalid 'stop': too long"]
)
def test_a_server_that_refuses_them_is_asked_without_and_the_answer_is_cut_here(words: str, capsys):
    def answer(path: str, request: Any) -> tuple[int, Any]:
        return (400, {"error": {"message": words}}) if "stop" in request else fake_answer(path, request)

    with Server(answer) as server:
        texts = load(server, concurrency=1).generate([say("a\nQ: b"), say("c")], STOP)
        assert ["stop" in request.body for request in server.requests] == [True, False, False]
    assert texts == ["a", "c!"]
    assert capsys.readouterr().err.count("the server refuses stop") == 1


@pytest.mark.long
def test_a_model_behind_a_server_ends_where_it_does_in_this_process(tiny):
    llm, prompts = JaxLLM(tiny, batch_size=4), ["the cat", "a", "on the mat"]
    whole = llm.generate(prompts, Sampling(12))
    stop = (whole[0][5:7], whole[2][3:4])
    with servers.serve_llm(llm) as server:
        found = load(server).generate(prompts, Sampling(12, stop=stop))
    assert found == llm.generate(prompts, Sampling(12, stop=stop)) != whole


def test_the_cache_keeps_answers_apart_by_their_stop_strings(file):
    with Server(knowing) as server:
        llm = Cached(load(server), file)
        for _ in range(2):
            found = [llm.generate(["a b c"], Sampling(8, stop=stop))[0] for stop in ((), (" c",), (" b",))]
            assert found == ["a b c", "a b", "a"]
        assert len(server.requests) == 3
        assert llm.generate(["a b c"], max_new_tokens=8, stop=(" c",)) == ["a b"]
        assert len(server.requests) == 3
