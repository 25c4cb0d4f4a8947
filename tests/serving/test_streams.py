"""Answers that are sent while a model in this process writes them, against the same answers in one piece."""

import asyncio
import gc
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from memories import HISTORIES, Client

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, override
from pbr_jax.system import System
from pbr_jax.tasks import AnswerFormat
from pbr_jax.text.answers import Parts

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def system(write_tweets: Callable[..., Path], tiny_models: Any, monkeypatch: pytest.MonkeyPatch) -> System:
    data: dict[str, Any] = {
        "benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(HISTORIES)), "eval.likelihood": "off",
        "benchmark.training": "none", "retrieve.method": "bm25", "generate.max_new_tokens": 150,
    }  # fmt: skip
    form = AnswerFormat("generation", (), (), "text", "tweet:", "tweet:")
    monkeypatch.setattr(System, "answer_format", form)
    return pbr_jax.open(override(Config(), {**tiny_models, **data}))


def events(client: Client, question: str, user: str) -> list[Any]:
    stream = client.ask(question, user=user, stream=True)
    assert (stream.status, stream.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    *found, done = [line[6:] for line in stream.body.decode().split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in found]


@pytest.mark.long
def test_parts_come_while_the_model_writes_and_join_to_the_answer(system: System, serve: Any):
    parts: list[str] = []
    reply = system.ask("ann", "about tea", on_text=parts.append)
    assert len(parts) > 3
    assert "".join(parts) == reply.text == system.ask("ann", "about tea").text  # now from the cache
    assert "".join(system.ask_stream("bob", "violins")) == system.ask("bob", "violins").text
    client = serve(system, name="mine")
    asked = [("about tea", "ann"), ("violins", "bob"), ("that day", "ann"), ("violins", "bob")]
    with ThreadPoolExecutor(4) as threads:
        streams = list(threads.map(lambda of: events(client, *of), asked))
    for (question, user), stream in zip(asked, streams, strict=True):
        whole = client.ask(question, user=user).json
        choices = [event["choices"][0] for event in stream]
        text = "".join(one["delta"].get("content", "") for one in choices)
        assert text == whole["choices"][0]["message"]["content"]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert {event["object"] for event in stream} == {"chat.completion.chunk"}
        assert {event["model"] for event in stream} == {"mine"}
        assert len({event["id"] for event in stream}) == 1
        for name in ("usage", "documents", "note"):
            assert stream[-1][name] == whole[name]


@pytest.mark.long
def test_an_error_is_a_status_before_the_first_part_and_an_event_after_it(
    system: System, serve: Any, monkeypatch: pytest.MonkeyPatch
):
    client = serve(system)
    assert client.ask(" ", user="ann", stream=True).status == 400
    assert client.ask("tea", user="\u200b", stream=True).status == 400  # found by the system

    def end(parts: Parts, answer: str) -> None:
        raise UserError("a secret text")

    monkeypatch.setattr(Parts, "end", end)
    *sent, last = events(client, "about tea", "ann")
    assert len(sent) > 3
    assert last["error"]["code"] == 400
    assert "secret" not in json.dumps(last)
    assert client.ask("about tea", user="ann").status == 200


def test_the_error_of_a_caller_who_has_left_is_in_no_log(caplog: pytest.LogCaptureFixture):
    pytest.importorskip("fastapi", reason="pip install 'pbr-jax[serve]'")
    from pbr_jax.serving.app import _streamed

    async def ask(on_text: Callable[[str], object]) -> Any:
        on_text("a part")
        await asyncio.sleep(0)
        raise RuntimeError("a secret text")

    async def left() -> None:
        events: Any = await _streamed(ask, lambda _: {}, "m")
        await anext(events)
        await asyncio.sleep(0.1)
        await events.aclose()
        del events
        gc.collect()

    asyncio.run(left())
    assert "secret" not in caplog.text
