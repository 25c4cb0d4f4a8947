"""What servers are asked beside the prompt, and what becomes of it when they refuse."""

from pathlib import Path
from typing import Any

import pytest
from servers import Fault, Server, fake_answer, fake_score

from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.http.requests import server_of
from pbr_jax.llm.protocol import Sampling

VLLM = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}
LLAMA = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_k": 0, "min_p": 0.0}
KWARGS = {"enable_thinking": False, "date_string": "26 Jul 2024"}
SILENT = {"chat_template_kwargs": KWARGS}


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def load(server: Server | str, /, **fields: Any) -> HTTPLLM:
    url = server if isinstance(server, str) else server.url
    config = schema.LLM(**{"backend": "http", "model": "m", "url": url, "retries": 0, **fields})
    return HTTPLLM(config, pause=lambda stop, seconds: None)


def refusing(*names: str, words: str = "Unrecognized request arguments supplied: {}") -> Any:
    """A server that takes none of these fields; `words` says so."""

    def answer(path: str, request: Any) -> tuple[int, Any]:
        given = [name for name in names if name in {**request, **request.get("sampling_params", {})}]
        if given:
            return 400, {"error": {"message": words.format(", ".join(given))}}
        return fake_answer(path, request)

    return answer


@pytest.mark.parametrize(("kind", "own"), [("vllm", VLLM), ("llama_cpp", LLAMA), ("openai", {})])
def test_each_kind_of_server_is_sent_the_fields_that_it_knows(kind, own):
    with Server(fake_answer) as server:
        load(server, server=kind).generate(["a", say("b")], Sampling(4, temperature=0.5))
        sent = {request.path.rpartition("v1/")[2]: request.body for request in server.requests}
    shared = {"model": "m", "max_tokens": 4, "temperature": 0.5, "top_p": 1.0, "seed": 0, **own}
    silent = {} if kind == "openai" else SILENT
    assert sent == {
        "completions": {**shared, "prompt": "a"},
        "chat/completions": {**shared, **silent, "messages": say("b")},
    }


@pytest.mark.parametrize(
    ("url", "fields", "kind"),
    [
        ("https://api.openai.com/v1", {}, "openai"),
        ("https://mine.openai.azure.com/openai/v1", {}, "openai"),
        ("https://api.openai.com/v1", {"server": "vllm"}, "vllm"),
        ("https://api.openai.com/v1", {"log_probs": "sglang"}, "vllm"),
        ("http://127.0.0.1:8000/v1", {}, "vllm"),
        ("http://127.0.0.1:8000/v1", {"log_probs": "echo"}, "vllm"),
        ("http://127.0.0.1:8000/v1", {"server": "openai"}, "openai"),
        ("https://api.openai.com.example/v1", {}, "vllm"),
    ],
)
def test_the_kind_of_server_is_known_by_the_config(url, fields, kind):
    assert server_of(schema.LLM(backend="http", model="m", url=url, **fields)) == kind


# -- Refusals ------------------------------------------------------------------------------------


def test_a_field_that_is_refused_by_name_is_left_out_from_then_on(capsys):
    with Server(refusing("top_k", "min_p")) as server:
        llm = load(server, concurrency=1)
        assert llm.generate([say("a"), say("b")], Sampling(4)) == ["a!", "b!"]
        bodies = [request.body for request in server.requests]
    assert len(bodies) == 3
    for body in bodies[1:]:
        assert {"top_k", "min_p"}.isdisjoint(body)
        assert body["repetition_penalty"] == 1.0
        assert body["chat_template_kwargs"] == KWARGS
    told = capsys.readouterr().err
    assert told == "llm: note: the server does not take top_k, min_p, left out: its own defaults hold there\n"


@pytest.mark.parametrize(
    "words", ["Extra inputs are not permitted", "Unknown field", "unsupported: stop asking", "bad system"]
)
def test_nothing_is_learned_from_an_error_that_names_no_field(words):
    with Server(refusing("min_p", words=words)) as server:
        with pytest.raises(UserError, match=words):
            load(server).generate([[{"role": "system", "content": "s"}, *say("a")]], Sampling(4, stop=("x",)))
        assert len(server.requests) == 1


def test_a_template_that_takes_no_arguments_is_asked_without():
    words = "enable_thinking: unexpected keyword"
    with Server(refusing("chat_template_kwargs", words=words)) as server:
        assert load(server).generate([say("a")], Sampling(4)) == ["a!"]
        assert VLLM.items() <= server.requests[1].body.items()


@pytest.mark.parametrize("dialect", ["vllm", "echo", "sglang"])
def test_scores_are_asked_again_without_what_is_refused(tiny: Path, dialect: Any):
    with Server(refusing("top_k")) as server:
        llm = load(server, tokenizer=str(tiny), log_probs=dialect, concurrency=1)
        wanted = [fake_score(tiny, "ab", target) for target in ("c", "d")]
        assert llm.score(["ab", "ab"], ["c", "d"]) == wanted
        assert len(server.requests) == 3


def test_a_refusal_that_stays_is_the_users(tiny: Path):
    with Server(fake_answer, [Fault(400, body=b"unknown model, unknown everything")] * 9) as server:
        with pytest.raises(UserError, match="unknown everything"):
            load(server).generate([say("a")], Sampling(4))
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 413])
def test_only_a_refusal_of_the_request_itself_is_asked_again(status):
    with Server(fake_answer, [Fault(status, body=b"unknown top_k")] * 2) as server:
        with pytest.raises(UserError):
            load(server).generate(["a"], Sampling(4))
        assert len(server.requests) == 1


REFUSED = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is."
)


def test_a_model_without_a_temperature_is_asked_without_where_it_is_zero(capsys):
    def answer(path: str, request: Any) -> tuple[int, Any]:
        if request.get("temperature", 1) != 1:
            return 400, {"error": {"message": REFUSED, "param": "temperature", "code": "unsupported_value"}}
        return fake_answer(path, request)

    with Server(answer) as server:
        llm = load(server, concurrency=1, server="openai")
        assert llm.generate([say("a"), say("b"), say("c")], Sampling(4)) == ["a!", "b!", "c!"]
        assert ["temperature" in request.body for request in server.requests] == [True, False, False, False]
        with pytest.raises(UserError, match="temperature"):
            llm.generate([say("a")], Sampling(4, temperature=0.5))
    assert capsys.readouterr().err == (
        "llm: note: the model takes no temperature, so it is not greedy: its answers may vary\n"
    )


def test_many_at_once_all_learn_of_a_refusal(capsys):
    with Server(refusing("top_k", "temperature"), delay=0.03) as server:
        texts = load(server).generate([say(f"{n}") for n in range(12)], Sampling(4))
    assert texts == [f"{n}!" for n in range(12)]
    assert capsys.readouterr().err.count("top_k") == 1


# -- llm.extra_body ------------------------------------------------------------------------------

EXTRA = '{"reasoning_effort": "low", "top_k": null, "chat_template_kwargs": {"mode": 2}, "min_p": 0.1}'


@pytest.mark.parametrize("dialect", ["vllm", "echo", "sglang"])
def test_the_extra_body_is_in_every_request(tiny: Path, dialect: Any):
    with Server(fake_answer) as server:
        llm = load(server, tokenizer=str(tiny), log_probs=dialect, extra_body=EXTRA)
        llm.generate(["a", say("b")], Sampling(4))
        llm.score(["a"], ["b"])
        bodies = [request.body for request in server.requests]
    assert len(bodies) == 3
    for body in bodies:
        assert (body["reasoning_effort"], body["min_p"]) == ("low", 0.1)
        assert "top_k" not in body
    chat = next(body for body in bodies if "messages" in body)
    assert chat["chat_template_kwargs"] == {**KWARGS, "mode": 2}


def test_a_field_of_the_extra_body_is_not_given_up():
    with Server(refusing("seedling")) as server:
        with pytest.raises(UserError, match="seedling"):
            load(server, extra_body='{"seedling": 1}').generate(["a"], Sampling(4))
        assert all("seedling" in request.body for request in server.requests)


def test_the_fingerprint_is_of_the_extra_body_and_the_kind_of_server_but_of_no_price():
    def fingerprint(**fields: Any) -> str:
        return load("http://192.0.2.1/v1", **fields).fingerprint

    first = fingerprint()
    assert fingerprint(extra_body=" {} ") == first
    assert fingerprint(price_prompt=2.0, price_completion=8.0) == first
    one = fingerprint(extra_body='{"a": 1, "b": {"c": 2, "d": 3}}')
    assert one == fingerprint(extra_body='{"b": {"d": 3, "c": 2}, "a": 1}')
    others = [fingerprint(extra_body=body) for body in ('{"a": 1}', '{"a": null}', '{"a": "1"}')]
    assert len({first, one, *others, fingerprint(server="openai"), fingerprint(server="vllm")}) == 7


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "llm.extra_body is '{', want a JSON object"),
        ("[1]", "want a JSON object"),
        ("[" * 100_000, "want a JSON object"),
        ('{"model": "x"}', "llm.extra_body has model, which other options say"),
        ('{"stream": true, "n": 2}', "llm.extra_body has n, stream, which"),
        ('{"stop": ["."]}', "llm.extra_body has stop, which"),
    ],
)
def test_an_extra_body_of_another_kind_is_one_line(body, message):
    with pytest.raises(UserError, match=message) as caught:
        schema.LLM(extra_body=body)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
