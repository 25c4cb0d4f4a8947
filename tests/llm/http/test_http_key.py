"""A key is found in whatever writing a server repeats it, and honest text is left alone."""

import base64
import gzip
import html
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers import Fault, Server

from pbr_jax import config as schema
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.http.key import holds, redact
from pbr_jax.types import UserError

KEY = "sk-canary/7f3a+91==Zq"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


WRITINGS = {
    "plain": f"the key is {KEY}.",
    "header": f"Authorization: Bearer {KEY}",
    "base64": b64(KEY),
    "base64 of the header": b64(f"Bearer {KEY}"),
    **{f"base64 after {n}": b64("x" * n + KEY + "tail") for n in range(1, 7)},
    "base64 for URLs": base64.urlsafe_b64encode(f"a{KEY}".encode()).decode(),
    "base64 in lines": base64.encodebytes(f"{'head ' * 9}{KEY}".encode()).decode(),
    "base64 in a URL": quote(b64(KEY), safe=""),
    "URL": quote(KEY, safe=""),
    "URL, all of it": "".join(f"%{ord(c):02x}" for c in KEY),
    "URL, twice": quote(quote(KEY, safe=""), safe=""),
    "hexadecimal": KEY.encode().hex(),
    "JSON escapes": "".join(f"\\u{ord(c):04x}" for c in KEY),
    "JSON slashes": KEY.replace("/", "\\/"),
    "HTML": html.escape(KEY).replace("+", "&#43;").replace("/", "&#x2F;"),
    "broken in lines": f"{KEY[:9]}\n{KEY[9:]}",
}


@pytest.mark.parametrize("name", WRITINGS)
def test_the_key_is_found_and_blotted_out(name):
    text = f"what was sent: {WRITINGS[name]} ..."
    assert holds(text, KEY)
    told = redact(text, KEY)
    assert not holds(told, KEY)
    assert "canary" not in told


@pytest.mark.parametrize("text", ["", "a %zz \\u12 &amp; text", "sk-other/7f3a+91==", KEY[:-1], b64(KEY[4:])])
def test_other_text_is_left_as_it_is(text):
    assert not holds(text, KEY)
    assert redact(text, KEY) == text
    assert redact(text, "") == text


def test_the_key_is_found_wherever_it_stands_in_a_long_text():
    for place in (448 << 10, (512 << 10) - 9, 512 << 10):
        text = " " * place + quote(b64(KEY), safe="")
        assert holds(text + " " * (1 << 20), KEY)
    assert not holds("x" * (1 << 20), KEY)


def test_an_answer_with_more_text_than_is_searched_is_refused(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    entries = [{str(n): {"logprob": -1.0, "decoded_token": " word"}} for n in range(20_000)]
    much = {"choices": [{"text": "a"}], "debug": "x" * (5 << 20)}
    honest = {"choices": [{"text": "a"}], "debug": entries}
    with Server(lambda path, request: (200, honest), [Fault(edit=lambda _: much)]) as server:
        config = schema.LLM(backend="http", model="m", url=server.url, retries=0, key_variable="TEST_KEY")
        with pytest.raises(UserError, match="over 4 MiB of text, more than the key of TEST_KEY is looked"):
            HTTPLLM(config).generate(["a"], max_new_tokens=64)
        assert HTTPLLM(config).generate(["a"], max_new_tokens=64) == ["a"]


def test_a_short_key_is_no_secret():
    """Servers of one's own are often given "EMPTY"."""
    assert not holds("an EMPTY answer", "EMPTY")
    assert redact("an EMPTY answer", "EMPTY") == "an [key] answer"


PLACES = {
    "an answer": lambda text: Fault(edit=lambda _: {"choices": [{"text": text}]}),
    "beside an answer": lambda text: Fault(edit=lambda _: {"choices": [{"text": "a"}], "debug": [{text: 1}]}),
    "no choices": lambda text: Fault(edit=lambda _: {"error": {"message": text}}),
    "a refusal": lambda text: Fault(400, body=json.dumps({"error": {"message": text}}).encode()),
    "a fault": lambda text: Fault(500, body=text.encode()),
    "a spent quota": lambda text: Fault(429, body=f"insufficient_quota {text}".encode()),
    "no JSON": lambda text: Fault(body=text.encode()),
    "compressed": lambda text: Fault(
        401, headers={"Content-Encoding": "gzip"}, body=gzip.compress(text.encode())
    ),
    "at the end of what is read": lambda text: Fault(400, body=b" " * ((64 << 10) - 12) + text.encode()),
}


@pytest.mark.parametrize("name", [*WRITINGS])
@pytest.mark.parametrize("place", PLACES)
def test_a_server_that_repeats_the_key_writes_it_nowhere(
    tmp_path: Path, monkeypatch, capsys, caplog, place: str, name: str
):
    monkeypatch.setenv("TEST_KEY", KEY)
    caplog.set_level(logging.INFO)
    with Server(lambda path, request: (200, {}), [PLACES[place](WRITINGS[name])]) as server:
        config = schema.LLM(backend="http", model="m", url=server.url, retries=0, key_variable="TEST_KEY")
        llm = Cached(HTTPLLM(config), tmp_path / "llm.sqlite")
        with pytest.raises(UserError) as caught:
            llm.generate(["a"], max_new_tokens=64)
    files = [file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file()]
    for told in (str(caught.value), repr(caught.value.__dict__), caplog.text, *capsys.readouterr(), *files):
        assert not holds(told, KEY)
        assert not any(part in told for part in (KEY[:8], "canary", b64(KEY)[:12], WRITINGS[name][-20:]))


def test_an_answer_that_does_not_hold_the_key_is_taken(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)

    def answer(path: str, request: Any) -> tuple[int, Any]:
        return 200, {"choices": [{"text": "a %20 b \\u0041 " + b64("nothing here")}]}

    with Server(answer) as server:
        config = schema.LLM(backend="http", model="m", url=server.url, retries=0, key_variable="TEST_KEY")
        [text] = HTTPLLM(config).generate(["a"], max_new_tokens=64)
    assert text == "a %20 b \\u0041 " + b64("nothing here")
