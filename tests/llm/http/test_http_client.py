"""The transport to a model's server: what is tried again, what is reported, and where the key goes."""

import gc
import gzip
import json
import random
import socket
import threading
import time
from email.utils import formatdate
from typing import Any

import pytest
from servers import Fault, Server

from pbr_jax.base.types import UserError
from pbr_jax.llm.http import client as http_client
from pbr_jax.llm.http.client import Client, Refused

CANARY = "sk-canary/7f3a+91=="
GOING = threading.Event()  # never set

PASSING = {
    **{str(status): Fault(status) for status in (408, 409, 425, 429, 500, 502, 503, 529)},
    "hang up": Fault(hang_up=True),
    "cut": Fault(cut=5),
    "truncated": Fault(body=b'{"choices": [{"te'),
    "not json": Fault(body=b"<html>welcome</html>"),
    "not an object": Fault(body=b"[1, 2]"),
    "not text": Fault(body=b"\xff\xfe\x00"),
    "nested": Fault(body=b"[" * 100_000),
    "coding": Fault(headers={"Content-Encoding": "gzip"}),
    "slow": Fault(delay=0.6),
}
REFUSALS = {status: Fault(status) for status in (301, 400, 401, 403, 404, 405, 413, 422)}


def answer(path: str, request: Any) -> tuple[int, Any]:
    return 200, {"path": path, "request": request}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("TEST_KEY", CANARY)


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def make(waits):
    """A client that does not wait, but says how long it would."""

    def client(**fields: Any) -> Client:
        options: dict[str, Any] = dict(key_variable="TEST_KEY", concurrency=3, timeout=5.0, retries=3)
        return Client(**{**options, **fields}, pause=lambda stop, seconds: waits.append(seconds))

    return client


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_a_request_and_its_answer_are_json(make):
    with Server(answer) as server:
        body = {"prompt": "é 😀 \ud800", "n": [1, 2]}
        assert make().post(f"{server.url}/x", body, GOING) == {"path": "/v1/x", "request": body}
        assert server.requests[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", PASSING)
def test_a_passing_fault_is_tried_again_and_in_the_end_one_line(make, waits, name):
    timeout = 0.2 if name == "slow" else 5.0
    with Server(answer, [PASSING[name]] * 2) as server:
        assert make(timeout=timeout).post(server.url, {"a": 1}, GOING)["request"] == {"a": 1}
        assert len(server.requests) == 3
    assert len(waits) == 2
    with Server(answer, [PASSING[name]] * 9) as server:
        with pytest.raises(UserError, match="after 2 tries; ") as caught:
            make(retries=1, timeout=timeout).post(server.url, {}, GOING)
        assert one_line(caught.value).startswith(server.url)
        assert len(server.requests) == 2
    assert "no answer within 0.2 s" in str(caught.value) or name != "slow"


def test_nobody_at_the_address_is_one_line(make, waits):
    message = r"connection failed \(.*refused.*\), after 4 tries; start the server"
    with pytest.raises(UserError, match=message) as caught:
        make().post(f"http://127.0.0.1:{free_port()}/v1", {}, GOING)
    one_line(caught.value)
    assert len(waits) == 3


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_not_tried_again(make, waits, status):
    with Server(answer, [REFUSALS[status]]) as server:
        with pytest.raises(Refused, match=f"answered {status} ") as caught:
            make().post(server.url, {}, GOING)
        assert len(server.requests) == 1
    assert caught.value.status == status
    one_line(caught.value)
    assert waits == []


def body(content: Any) -> bytes:
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(401, body=body({"error": {"message": "no key"}})), r"\(no key\); set .* variable TEST_KEY"),
        (Fault(403, body=body({"error": "forbidden"})), r"\(forbidden\); set .* variable TEST_KEY"),
        (Fault(404, body=body({"message": "no model x"})), r"\(no model x\); check llm\.url .* llm\.model"),
        (
            Fault(400, body=body({"error": {"message": "This model's maximum context length is 4 tokens."}})),
            r"context length is 4 tokens\.\); lower prompt\.max_tokens or generate\.max_new_tokens",
        ),
        (Fault(413, body=b"too large"), r"\(too large\); lower prompt\.max_tokens"),
        (Fault(422, body=body({"detail": [{"msg": "bad"}]})), r'\(\[{"msg": "bad"}\]\); check'),
        (Fault(400, body=b"<p>\n no\n</p>"), r"\(<p> no </p>\); check llm\.model"),
        (Fault(400, body=b""), r"400 \(Bad Request\)"),
        (Fault(301, headers={"Location": "http://a/v1"}), r"a redirect to http://a/v1\); .* set llm\.url"),
    ],
)  # fmt: skip
def test_a_refusal_tells_the_servers_words_and_what_to_do(make, fault, message):
    with Server(answer, [fault]) as server, pytest.raises(Refused, match=message) as caught:
        make().post(server.url, {}, GOING)
    one_line(caught.value)


def test_a_long_message_is_shortened(make):
    with Server(answer, [Fault(400, body=b"word " * 1000)]) as server, pytest.raises(Refused) as caught:
        make().post(server.url, {}, GOING)
    assert 300 < len(str(caught.value)) < 500


@pytest.mark.parametrize("status", [200, 400, 503])
def test_compressions_of_compressions_are_not_undone(make, waits, status):
    """However little it makes of them, a server could keep the event loop busy with a few kilobytes."""
    twice = gzip.compress(gzip.compress(b"{}"))
    with Server(answer, [Fault(status, {"Content-Encoding": "gzip, gzip"}, body=twice)]) as server:
        with pytest.raises(UserError, match="compressed 2 times over, want once at most; check") as caught:
            make().post(server.url, {}, GOING)
        assert len(server.requests) == 1
        assert server.requests[0].headers["Accept-Encoding"] == "gzip"
    one_line(caught.value)
    for coding in ("gzip", "identity, gzip"):
        fault = Fault(headers={"Content-Encoding": coding}, body=gzip.compress(b'{"a": 1}'))
        with Server(answer, [fault]) as server:
            assert make().post(server.url, {}, GOING) == {"a": 1}


def test_waits_double_up_to_a_limit_and_are_random(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert [http_client.backoff(tries) for tries in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert http_client.backoff(10**9) == 30
    monkeypatch.undo()
    some = {http_client.backoff(4) for _ in range(50)}
    assert len(some) == 50
    assert min(some) < 2
    assert 6 < max(some) <= 8


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7), ("0.5", 0.5), ("3600", 60), ("inf", 60), ("nan", 0), ("-5", 0), ("soon", 0), (None, 0),
        (formatdate(1_000_020, usegmt=True), 20), (formatdate(990_000, usegmt=True), 0),
        (formatdate(2_000_000, usegmt=True), 60), ("Wed, 99 Oct 2015 07:28:00 GMT", 0), ("", 0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_has_a_limit(monkeypatch, value, seconds):
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert http_client.retry_after(value) == seconds


def test_the_servers_wait_is_kept_where_it_is_longer(make, waits):
    script = [Fault(429, {"Retry-After": "50"}), Fault(503, {"Retry-After": "500"}), Fault(429)]
    with Server(answer, script) as server:
        make().post(server.url, {}, GOING)
    assert waits[:2] == [50.0, 60.0]
    assert waits[2] <= 4.0


def test_nothing_is_tried_again_once_stopped():
    stop = threading.Event()
    client = Client(
        key_variable="", concurrency=1, timeout=5.0, retries=3, pause=lambda stop, seconds: stop.set()
    )
    for _ in ("while it waits", "before"):
        with Server(answer, [Fault(500)]) as server:
            with pytest.raises(UserError, match="after 1 try"):
                client.post(server.url, {}, stop)
            assert len(server.requests) == 1


# -- Many at once --------------------------------------------------------------------------------


def posts(client: Client, server: Server, count: int) -> list[Any]:
    return [lambda stop, n=n: client.post(server.url, {"n": n}, stop)["request"]["n"] for n in range(count)]


def test_results_come_with_their_places_in_the_calling_thread(make):
    found, threads = {}, set()

    def finish(place, value):
        found[place] = value
        threads.add(threading.current_thread())

    client = make(concurrency=3)
    with Server(answer, [Fault(delay=0.2)], delay=0.02) as server:
        client.run(posts(client, server, 7), finish)
        assert server.most_at_once == 3
    client.run([], finish)
    assert found == {n: n for n in range(7)}
    assert list(found) != sorted(found)  # the first was slow: others did not wait for it
    assert threads == {threading.current_thread()}


def test_after_a_failure_nothing_starts_and_what_is_under_way_is_reported(make):
    """Three at once: the second fails at once, the first and third are under way, the rest never starts."""
    found, started, client = {}, [], make(retries=0)
    under_way = threading.Barrier(3)

    def job(n: int, stop: threading.Event) -> int:
        started.append(n)
        under_way.wait(5)
        if n == 1:
            raise UserError("the second fails")
        assert stop.wait(5)  # told of the failure
        return n

    jobs = [lambda stop, n=n: job(n, stop) for n in range(20)]
    with pytest.raises(UserError, match="the second fails"):
        client.run(jobs, found.__setitem__)
    assert found == {0: 0, 2: 2}
    assert sorted(started) == [0, 1, 2]


def test_the_first_failure_is_the_one_raised(make):
    def fail(stop: threading.Event) -> int:
        late = stop.wait(0.5)
        raise UserError("late" if late else "early")

    def fail_now(stop: threading.Event) -> int:
        raise UserError("first")

    with pytest.raises(UserError, match="first"):
        make().run([fail, fail_now, fail], lambda place, value: None)


def test_an_interruption_while_reporting_stops_the_rest(make):
    started = []

    def finish(place, value):
        raise KeyboardInterrupt

    client = make(concurrency=2)
    with pytest.raises(KeyboardInterrupt):
        client.run([lambda stop, n=n: started.append(n) for n in range(50)], finish)
    assert len(started) <= 4


# -- The key -------------------------------------------------------------------------------------


def test_the_key_is_read_for_every_request_and_stands_in_one_header(make, monkeypatch):
    client = make()
    with Server(answer) as server:
        client.post(server.url, {}, GOING)
        monkeypatch.setenv("TEST_KEY", " other\n")
        client.post(server.url, {}, GOING)
        monkeypatch.delenv("TEST_KEY")
        client.post(server.url, {}, GOING)
        first, second, third = server.requests
    assert first.headers["authorization"] == f"Bearer {CANARY}"
    assert second.headers["authorization"] == "Bearer other"
    assert "authorization" not in third.headers
    assert [CANARY in value for value in first.headers.values()].count(True) == 1
    assert CANARY not in first.path + json.dumps(first.body)


def test_the_key_does_not_follow_a_redirect(make):
    with Server(answer) as other:
        script = [Fault(status, {"Location": other.url}) for status in (301, 302, 307, 308)]
        with Server(answer, script) as server:
            for status in (301, 302, 307, 308):
                with pytest.raises(Refused, match=f"{status} .*redirects are not followed"):
                    make().post(server.url, {}, GOING)
        assert other.requests == []


def everything_told(error: BaseException) -> str:
    """The error and its causes."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        parts += [str(seen), repr(seen), repr(seen.args), repr(vars(seen))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(parts)


def test_a_key_that_no_header_can_carry_is_an_error_that_does_not_tell_it(make, monkeypatch):
    for key in (f"{CANARY}\nx", f"{CANARY}é", f"{CANARY}\x7f"):
        monkeypatch.setenv("TEST_KEY", key)
        with pytest.raises(UserError, match="environment variable TEST_KEY") as caught:
            make().post("http://127.0.0.1:9", {}, GOING)
        one_line(caught.value)
        assert "canary" not in str(caught.value)


# -- Settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@host/v1", "http://secret@host/v1", "http://host/v1?key=secret",
        "http://host/v1?secret", "http://host/v1?api-version=1&sig=secret", "http://host/v1?code=secret#x",
        "http://host/v1#secret", "http://", "http:///v1", "http://host:secret/v1", "http://host:99999/v1",
        "http://\u00fc..secret/v1", "http://[secret/v1", "http://host/v1\nsecret", "http://ho st/v1", "https://:80/v1",
    ],
)  # fmt: skip
def test_an_odd_address_is_an_error_that_does_not_quote_it(url):
    with pytest.raises(UserError, match=r"llm\.url must be scheme, host and path") as caught:
        http_client.Place.of(url)
    assert "secret" not in everything_told(caught.value.with_traceback(None))
    one_line(caught.value)


AZURE = "https://res.openai.azure.com/openai/deployments/gpt-4o"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1/chat/completions"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/v1/completions/", "http://h/v1/chat/completions"),
        ("http://h/chat", "http://h/chat/chat/completions"),
        (f"{AZURE}?api-version=2025-01-01", f"{AZURE}/chat/completions?api-version=2025-01-01"),
        (f"{AZURE}/chat/completions?api-version=v", f"{AZURE}/chat/completions?api-version=v"),
    ],
)
def test_an_address_is_that_of_the_api_or_of_its_chat_completions(url, address):
    assert http_client.Place.of(url).at("/chat/completions") == address


def test_what_stands_beside_v1_is_found_there():
    assert http_client.Place.of("http://h/v1?version=2").at("/generate", beside_v1=True) == (
        "http://h/generate?version=2"
    )


def test_azure_gets_the_key_in_its_own_header(make):
    with Server(answer) as server:
        address = server.url + "/chat/completions?api-version=1"
        make().post(address, {}, GOING)
        [seen] = server.requests
    headers = {name.lower(): value for name, value in seen.headers.items()}
    assert headers["api-key"] == CANARY
    assert "authorization" not in headers
    assert seen.path.endswith("?api-version=1")


def test_further_headers_come_from_the_environment_and_override_ours(make, monkeypatch):
    held = {"X-Team": "search", "Authorization": "Basic dTpwYXNzd29yZA"}
    monkeypatch.setenv("TEST_HEADERS", json.dumps(held))
    with Server(answer, [None, Fault(400, body=b"no dTpwYXNzd29yZA here")]) as server:
        client = make(headers_variable="TEST_HEADERS")
        client.post(server.url, {}, GOING)
        with pytest.raises(Refused, match=r"no \[key\] here"):
            client.post(server.url, {}, GOING)
        headers = server.requests[0].headers
    assert [headers.get(name) for name in ("x-team", "authorization")] == ["search", "Basic dTpwYXNzd29yZA"]
    assert CANARY not in json.dumps(headers)


@pytest.mark.parametrize("held", ["{", "[]", '{"a": 1}', '{"a b": "c"}', '{"a": "secret\\n"}', '{"a": "é"}'])
def test_headers_of_another_form_are_one_line_that_does_not_quote_them(make, monkeypatch, held):
    monkeypatch.setenv("TEST_HEADERS", held)
    with pytest.raises(UserError, match="TEST_HEADERS holds no headers, want a JSON object") as caught:
        make(headers_variable="TEST_HEADERS").post("http://127.0.0.1:9", {}, GOING)
    assert "secret" not in one_line(caught.value)


def test_an_impossible_proxy_is_a_user_error(make, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1:9")
    with pytest.raises(UserError, match=r"proxy .* of the environment .* HTTP_PROXY") as caught:
        make()
    one_line(caught.value)


def test_a_forgotten_client_closes_its_connections(make):
    client = make()
    with Server(answer) as server:
        client.post(server.url, {}, GOING)
        http = client._http
        assert not http.is_closed
        del client
        gc.collect()
        for _ in range(100):
            time.sleep(0.05 * (not http.is_closed))
        assert http.is_closed
