"""A key is read from the environment, and stands in nothing that is written."""

import gzip
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import Fault, Server

from pbr_jax import config as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.http.client import redact
from pbr_jax.llm.protocol import Sampling

KEY = "sk-canary/7f3a+91==Zq"


def load(url: str) -> HTTPLLM:
    return HTTPLLM(schema.LLM(backend="http", model="m", url=url, retries=0, key_variable="TEST_KEY"))


@pytest.mark.parametrize("text", ["", "a %zz \\u12 &amp; text", "sk-other/7f3a+91==", KEY[:-1]])
def test_other_text_is_left_as_it_is(text):
    assert redact(text, KEY) == redact(text, "") == text


@given(st.lists(st.text('ab"\\', min_size=1), min_size=1))
def test_a_secret_is_taken_out_whole_though_another_begins_it_or_json_spells_it(secrets):
    for secret in secrets:
        assert redact(secret, *secrets) == redact(json.dumps(secret)[1:-1], *secrets) == "[key]"


PLACES = {
    "an answer": lambda text: Fault(edit=lambda _: {"choices": [{"text": text}]}),
    "beside an answer": lambda text: Fault(edit=lambda _: {"choices": [{"text": "a"}], "debug": [{text: 1}]}),
    "no choices": lambda text: Fault(edit=lambda _: {"error": {"message": text}}),
    "a refusal": lambda text: Fault(400, body=json.dumps({"error": {"message": text}}).encode()),
    "a redirect": lambda text: Fault(301, headers={"Location": f"http://x/?key={KEY}"}),
    "a long refusal": lambda text: Fault(400, body=(" " * 290 + text).encode()),
    "a fault": lambda text: Fault(500, body=text.encode()),
    "a spent quota": lambda text: Fault(429, body=f"insufficient_quota {text}".encode()),
    "no JSON": lambda text: Fault(body=text.encode()),
    "compressed": lambda text: Fault(
        401, headers={"Content-Encoding": "gzip"}, body=gzip.compress(text.encode())
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_server_that_repeats_the_key_writes_it_nowhere(
    tmp_path: Path, monkeypatch, capsys, caplog, place: str
):
    monkeypatch.setenv("TEST_KEY", KEY)
    caplog.set_level(logging.INFO)
    with Server(lambda path, request: (200, {}), [PLACES[place](f"Bearer {KEY}.")]) as server:
        llm = Cached(load(server.url), tmp_path / "llm.sqlite")
        with pytest.raises(UserError) as caught:
            llm.generate(["a"], Sampling(64))
    files = [file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file()]
    for written in (
        str(caught.value),
        repr(caught.value.__dict__),
        caplog.text,
        *capsys.readouterr(),
        *files,
    ):
        assert KEY[:8] not in written


@pytest.mark.parametrize(("key", "text"), [(KEY, "a %20 b \\u0041"), ("EMPTY", "an EMPTY answer")])
def test_an_answer_that_does_not_hold_a_secret_is_taken(monkeypatch, key, text):
    """Servers of one's own are often given "EMPTY"."""
    monkeypatch.setenv("TEST_KEY", key)
    with Server(lambda path, request: (200, {"choices": [{"text": text}]})) as server:
        assert load(server.url).generate(["a"], Sampling(64)) == [text]
