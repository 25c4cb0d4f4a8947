"""The web server: who is who, what it keeps, its bounds, and that it repeats nothing of a request."""

import json
import random
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from memories import HISTORIES, Client, echoing

import pbr_jax
from pbr_jax.config import Config
from pbr_jax.experiment import forgetting, opening
from pbr_jax.llm import reads
from pbr_jax.llm.answers_file import Answers
from pbr_jax.remarks.judge import Script
from pbr_jax.serving.guard import Limits
from pbr_jax.serving.keys import Caller, Keys

pytestmark = pytest.mark.usefixtures("fresh_cache")

Serve = Callable[..., Client]


@pytest.fixture
def config(write_tweets: Callable[..., Path], tiny_models: dict[str, str]) -> Iterator[Config]:
    encoder: Any = {"encoder.model": tiny_models["encoder.model"]}
    with echoing(write_tweets(HISTORIES), **encoder) as found:
        yield found


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.json")


def test_keys_are_hashed_and_only_their_owner_reads_the_file(keys: Keys):
    assert keys.users == []
    ann, again, trusted = keys.add("ann"), keys.add("ann"), keys.add(None)
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    text = keys.path.read_text()
    assert not any(key in text for key in (ann, again, trusted))
    other = Keys(keys.path)
    assert other.caller(ann) == other.caller(again) == Caller("ann")
    assert other.caller(trusted) == Caller(None)
    for wrong in ("", ann[:-1], ann + "x", ann.upper(), "\ud800"):
        assert other.caller(wrong) is None
    assert keys.remove("ann") == 2
    assert other.caller(ann) is None
    assert other.users == [None]


def test_the_key_says_who_asks_and_a_name_counts_only_from_a_trusted_caller(
    serve: Serve, config: Config, keys: Keys
):
    ann, trusted = keys.add("ann"), keys.add(None)
    port = serve(pbr_jax.open(config), keys=keys).port
    own = Client(port, ann, user="bob").ask("about what", user="bob").json
    assert "i love tea" in own["choices"][0]["message"]["content"]
    named = Client(port, trusted, user="bob").ask("about what").json
    assert "violins" in named["choices"][0]["message"]["content"]
    assert "violins" in Client(port, trusted).ask("about what", user="bob").body.decode()
    assert Client(port, trusted).ask("about what").status == 400
    for key in (None, "pbr-wrong", ann + "x"):
        client = Client(port, key, user="ann")
        assert client.ask("about what").status == 401
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/v1/users/ann/documents"),
            ("GET", "/v1/users/me/export"),
            ("DELETE", "/v1/users/ann"),
        ):
            assert client(method, path).status == 401
    assert Client(port)("GET", "/healthz").json == {"status": "ok"}


def test_a_name_is_of_one_user_however_it_is_spelled(serve: Serve, config: Config, keys: Keys):
    forms = ["zo\u00eb", "zoe\u0308", "\ufeffzo\u00eb "]
    made, trusted = [keys.add(form) for form in forms], keys.add(None)
    other, port = keys.add("zo"), serve(pbr_jax.open(config), keys=keys).port
    for key in made:
        for form in forms:
            assert Client(port, key)("GET", f"/v1/users/{quote(form)}/documents").status == 200
    assert Client(port, other)("GET", f"/v1/users/{quote(forms[0])}/documents").status == 403
    Client(port, made[2])("POST", "/v1/users/me/documents", {"texts": ["tea"]})
    receipt = Client(port, trusted)("DELETE", f"/v1/users/{quote(forms[1])}").json
    assert (receipt["deleted"]["documents"], receipt["keys"]) == (1, 3)
    assert keys.users == [None, "zo"]


def test_without_a_key_no_body_is_waited_for(serve: Serve, config: Config, keys: Keys):
    keys.add("ann")
    client = serve(pbr_jax.open(config), keys=keys, limits=Limits(arrival=50.0))
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\nx"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_anothers_documents_are_refused_whether_they_exist_or_not(serve: Serve, config: Config, keys: Keys):
    system = pbr_jax.open(config)
    (of_bob, *_) = system.documents("bob")
    client = Client(serve(system, keys=keys).port, keys.add("ann"))
    answers = [
        client("DELETE", f"/v1/users/{user}/documents?id={id}")
        for user in ("bob", "nobody")
        for id in (of_bob.id, "none")
    ]
    calls: list[tuple[str, str, Any]] = [
        ("GET", "/documents", None),
        ("GET", "/export", None),
        ("DELETE", "", None),
        ("POST", "/documents", {"texts": ["x"]}),
        ("POST", "/search", {"text": "x"}),
        ("POST", "/feedback", {"remark": "x"}),
    ]
    for user in ("bob", "nobody"):
        answers += [client(method, f"/v1/users/{user}{path}", body) for method, path, body in calls]
    assert {(answer.status, answer.body) for answer in answers} == {(403, answers[0].body)}
    assert client("DELETE", f"/v1/users/me/documents?id={of_bob.id}").status == 404
    assert system.documents("bob")[0] == of_bob


def test_documents_come_are_found_and_go_with_a_receipt(serve: Serve, config: Config):
    system = pbr_jax.open(config)
    client = serve(system)
    added = client("POST", "/v1/users/eve/documents", {
        "texts": ["the lake is cold"], "time": "2024-03-01",
        "records": [{"question": "tea?", "answer": "always"}],
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}],
    }).json["documents"]  # fmt: skip
    assert [one["text"] for one in added] == [
        "the lake is cold",
        "tea?\nalways",
        "user: hello\nassistant: hi",
    ]
    assert all(one["time"] == 1709251200.0 for one in added)
    assert client("GET", "/v1/users/eve/documents").json["documents"] == added
    found = client("POST", "/v1/users/eve/search", {"text": "is the lake cold", "k": 1}).json["documents"]
    assert [(one["id"], one["text"]) for one in found] == [(added[0]["id"], "the lake is cold")]
    told = {"question": "x", "documents": [added[0]["id"], added[1]["id"]], "rating": 1}
    assert client("POST", "/v1/users/eve/feedback", told).json == {"rated": 2}
    one = client("DELETE", f"/v1/users/eve/documents?id={added[1]['id']}").json
    assert one["deleted"]["documents"] == 1
    rating = {"question": "x", "document": added[0]["id"], "value": 1}
    exported = {"documents": [added[0], added[2]], "remarks": [], "ratings": [rating]}
    assert client("GET", "/v1/users/eve/export").json == exported
    receipt = client("DELETE", "/v1/users/eve").json
    assert receipt["deleted"] == {"documents": 2, "remarks": 0}
    assert client("GET", "/v1/users/eve/documents").json == {"documents": []}
    assert client("DELETE", "/v1/users/eve").json["deleted"]["documents"] == 0
    assert "eve" not in system.users()


def test_nothing_of_what_a_user_did_is_left_whatever_it_was(
    serve: Serve, write_tweets: Callable[..., Path], tiny_models: dict[str, str], tmp_path: Path
):
    """Users, known and unknown ones, do a part of all that can be done, each with a word of their own."""
    fields: Any = {"encoder.model": tiny_models["encoder.model"], "expand.method": "hyde"}
    users = ["ann", "bob", *(f"new {i}" for i in range(8)), "new", "an"]
    words = {user: f"CANARY{number:02}Z" for number, user in enumerate(users)}
    with echoing(write_tweets(HISTORIES), **fields) as config:
        pbr_jax.run(config, tmp_path / "out")
        system = opening._open(tmp_path / "out")
        (shared,) = system.add_shared(["the lake is closed"])
        client = serve(system)

        def rate(user: str, word: str) -> None:
            told = {"question": word, "documents": [shared.id], "rating": 1}
            assert client("POST", f"/v1/users/{quote(user)}/feedback", told).status == 200

        actions: list[Callable[[str, str], object]] = [
            lambda user, word: client.ask(f"about {word}", user=user),
            lambda user, word: client.ask(f"about {word}", user=user, model="m-without-history"),
            lambda user, word: client("POST", f"/v1/users/{quote(user)}/search", {"text": word}),
            lambda user, word: client(
                "POST", f"/v1/users/{quote(user)}/documents", {"texts": [f"tea {word}"]}
            ),
            lambda user, word: system.observe(user, word, judge=Script([{"remark": "", "summary": ""}])),
            lambda user, word: system.observe(user, word, judge=Script([])),
            rate,
        ]
        draw = random.Random(0)
        for turn, user in enumerate(users):
            chosen = [actions[turn]] if turn < len(actions) else draw.sample(actions, 3)
            for action in [*chosen, *(actions[:1] if user == "ann" else [])]:
                action(user, words[user])

        def left(word: str) -> list[Path]:
            files = (path for name in ("cache", "out") for path in (tmp_path / name).rglob("*"))
            return [path for path in files if path.is_file() and word.encode() in path.read_bytes()]

        there = {user for user in users if left(words[user])}
        assert len(there) > 6
        for user in draw.sample(users, len(users)):
            assert client("DELETE", f"/v1/users/{quote(user)}").status == 200
            there -= {user}
            assert left(words[user]) == []
            assert {user for user in users if left(words[user])} == there


@pytest.mark.parametrize("user", ["bob", "eve"])  # the second one is not known
def test_an_answer_of_a_process_that_was_killed_goes_with_the_next_deletion(
    serve: Serve, config: Config, tmp_path: Path, monkeypatch: Any, user: str
):
    """The answer comes after the deletion, and the process dies before it can take it back."""
    system = pbr_jax.open(config)
    client, add = serve(system), Answers.add

    def late(self: Answers, kind: str, values: Any, model: str) -> Any:
        if values:
            reads.erase((), [user])
        return add(self, kind, values, model)

    def left() -> list[Path]:
        files = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
        return [path for path in files if b"CANARY" in path.read_bytes()]

    monkeypatch.setattr(Answers, "add", late)
    monkeypatch.setattr(reads, "erase_late", lambda keys: None)
    assert client.ask("about CANARY", user=user).status == 200
    assert left()
    assert client("DELETE", f"/v1/users/{user}").status == 200
    assert left() == []


def test_thumbs_teach_the_order_of_similar_questions(serve: Serve, config: Config):
    system = pbr_jax.open(config)
    client = serve(system)

    def order(question: str) -> list[str]:
        found = client("POST", "/v1/users/ann/search", {"text": question}).json["documents"]
        return [one["text"] for one in found]

    before = order("i love tea")
    first = next(d.id for d in system.documents("ann") if d.text == before[0])
    told = {"question": "i love tea", "documents": [first], "rating": -1}
    assert client("POST", "/v1/users/ann/feedback", told).json == {"rated": 1}
    assert order("i love tea") == before[::-1]
    (rating,) = client("GET", "/v1/users/ann/export").json["ratings"]
    assert rating == {"question": "i love tea", "document": first, "value": -1}
    assert client("POST", "/v1/users/bob/feedback", told).status == 400  # not bob's
    client("POST", "/v1/users/ann/feedback", told | {"rating": 0})
    assert order("i love tea") == before
    client("POST", "/v1/users/ann/feedback", told | {"question": "a secret question"})
    client("DELETE", "/v1/users/ann")
    folder = system.remarks.path.parent
    assert not any(b"secret question" in path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_a_stream_and_embeddings_are_those_of_the_system(serve: Serve, config: Config):
    system = pbr_jax.open(config)
    client = serve(system, name="mine")
    whole = client.ask("about tea", user="ann").json
    stream = client.ask("about tea", user="ann", stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = [line[6:] for line in stream.body.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    parts = [json.loads(event)["choices"][0] for event in events]
    text = "".join(part["delta"].get("content", "") for part in parts)
    assert text == whole["choices"][0]["message"]["content"] == system.ask("ann", "about tea").text
    assert [part["finish_reason"] for part in parts[-2:]] == [None, "stop"]
    assert [one["text"] for one in whole["documents"]] == HISTORIES["ann"]
    plain = client.ask("about tea", user="ann", model="mine-without-history").json
    assert plain["choices"][0]["message"]["content"] == system.ask("ann", "about tea", history=False).text
    names = [one["id"] for one in client("GET", "/v1/models").json["data"]]
    assert names == ["mine", "mine-without-history"]
    vectors = client("POST", "/v1/embeddings", {"input": ["tea", "i love cats"]}).json["data"]
    for one, vector in zip(vectors, system.encode(["tea", "i love cats"]), strict=True):
        assert one["embedding"] == pytest.approx(vector.tolist(), abs=1e-6)


HOSTILE: list[tuple[str, str, Any, dict[str, str]]] = [
    *(("POST", "/v1/chat/completions", body, {}) for body in (
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 20_000, b'{"messages": ' + b"[" * 20_000,
        b'{"messages": 9' + b"9" * 5000 + b"}", b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        {"messages": []}, {"messages": [{}]}, {"messages": "CANARY"}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": " "}], "user": "ann"},
        {"messages": [{"role": "assistant", "content": "CANARY"}], "user": "ann"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "CANARY"}]}]},
        {"messages": [{"role": "user", "content": "x"}], "user": ""},
        {"messages": [{"role": "user", "content": "x"}], "user": "\u200b"},
        {"messages": [{"role": "user", "content": "x"}], "user": {"CANARY": 1}},
        {"messages": [{"role": "user", "content": "x"}], "user": "ann", "n": 9},
        {"messages": [{"role": "user", "content": "x"}], "user": "ann", "stream": "CANARY"},
        {"messages": [{"role": "user", "content": "CANARY" * 200_000}], "user": "ann"})),
    *(("POST", "/v1/embeddings", body, {}) for body in (
        {}, {"input": []}, {"input": [[1, 2]]}, {"input": [""]},
        {"input": "x", "encoding_format": "CANARY"})),
    *(("POST", "/v1/users/ann/documents", body, {}) for body in (
        {"texts": [" "]}, {"texts": "CANARY"}, {"records": [{"CANARY": 1}]},
        {"records": [{"id": "", "text": "x"}]},
        {"messages": [{"role": "user", "content": 5}]}, {"texts": ["x"], "time": "CANARY"},
        {"texts": ["x"], "time": float("inf")}, {"texts": ["x", "half \ud800"]})),
    ("POST", "/v1/users/ann/search", {"text": "x", "k": 0}, {}),
    ("POST", "/v1/users/ann/feedback", {"rating": 5, "question": "CANARY"}, {}),
    ("POST", "/v1/users/ann/feedback", {"rating": 1, "question": "CANARY", "documents": ["CANARY"]}, {}),
    ("POST", "/v1/users/ann/feedback", {}, {}),
    ("DELETE", "/v1/users/ann/documents?id=CANARY", None, {}),
    ("DELETE", "/v1/users/ann/documents", None, {}),
    ("GET", "/v1/users/%e2%80%8b/documents", None, {}),
    ("GET", "/v1/users/..%2f..%2fCANARY/documents", None, {}),
    ("GET", "/CANARY", None, {}), ("PUT", "/v1/models", None, {}), ("BREW", "/v1/models", None, {}),
    ("GET", "/v1/models", None, {"Host": "canary.example"}), ("GET", "/v1/models", None, {"Host": "[CANARY"}),
    ("GET", "/v1/models", None, {"Origin": "http://canary.example"}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]},
     {"X-PBR-User": "\xff"}),
]  # fmt: skip


def test_hostile_requests_end_in_an_error_that_repeats_nothing_and_the_next_one_works(
    serve: Serve, config: Config, capfd: pytest.CaptureFixture[str]
):
    client = serve(pbr_jax.open(config), limits=Limits(arrival=0.3))
    assert len(HOSTILE) >= 40
    for number, (method, path, body, headers) in enumerate(HOSTILE):
        answer = client(method, path, body, **headers)
        assert 400 <= answer.status < 500, (number, answer)
        assert b"CANARY" not in answer.body, number
        assert client("GET", "/healthz").status == 200
    for raw in (
        b"CANARY\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nCANARY",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"CANARY" * 50_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
            connection.sendall(raw)
            got = connection.recv(1 << 16)
        assert got == b"" or got[9:10] == b"4", (raw[:40], got)
        assert b"CANARY" not in got
        assert client("GET", "/healthz").status == 200
    metrics = client("GET", "/metrics").body
    assert b"CANARY" not in metrics
    assert b"ann" not in metrics
    assert b'route="/v1/chat/completions",method="POST",status="400"' in metrics
    out, err = capfd.readouterr()
    assert "CANARY" not in out + err


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts and numbers in JSON."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from ((key, *rest) for rest in places(value[key]))
    else:
        yield ()


BODIES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "tea"}], "user": "ann", "model": "m"}),
    ("/v1/embeddings", {"input": ["tea", "x"], "encoding_format": "float"}),
    ("/v1/users/ann/documents", {"texts": ["a"], "records": [{"id": "i", "text": "t"}], "time": "2024-01-01",
                                 "messages": [{"role": "user", "content": "c"}]}),
    ("/v1/users/ann/search", {"text": "tea", "k": 1}),
    ("/v1/users/ann/feedback", {"rating": 1, "question": "tea", "documents": ["ann-0"]}),
    ("/v1/users/ann/feedback", {"remark": "tea", "request": "r"}),
]  # fmt: skip
ODD: list[Any] = [
    "\ud800",
    "a\ud800",
    "\0",
    "\u202e",
    "\r\nX: y",
    "../x",
    "",
    10**400,
    -1,
    1e308,
    None,
    [],
    {},
]


def test_no_value_in_any_place_of_a_request_is_an_error_of_the_server(
    serve: Serve, config: Config, capfd: pytest.CaptureFixture[str]
):
    client = serve(pbr_jax.open(config))
    for route, body in BODIES:
        for path in places(body):
            for odd in ODD:
                changed = json.loads(json.dumps(body))
                inner = changed
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = odd
                assert client("POST", route, changed).status < 500, (route, path, odd)
    assert "Error" not in "".join(capfd.readouterr())


def test_a_server_whose_data_were_erased_says_so_and_shows_nothing_of_them(
    serve: Serve, config: Config, tmp_path: Path
):
    pbr_jax.run(config, tmp_path / "out")
    client = serve(opening._open(tmp_path / "out"))
    assert client("GET", "/v1/users/bob/documents").json["documents"]
    forgetting.forget("bob")
    for answer in (
        client("GET", "/v1/users/bob/documents"),
        client("GET", "/v1/users/bob/export"),
        client.ask("about tea", user="ann"),
    ):
        assert answer.status == 503
        assert answer.json["error"]["message"] == "the run or its data have changed; start the server anew"


def test_the_same_id_of_a_request_of_two_users_is_not_the_same_request(
    serve: Serve, config: Config, monkeypatch: Any
):
    system = pbr_jax.open(config)
    observe = system.observe
    monkeypatch.setattr(system, "observe", lambda *a, **o: observe(*a, **o, judge=Script([])))
    client = serve(system)
    told = [
        client("POST", f"/v1/users/{user}/feedback", {"remark": f"i am {user}", "request": "1"}).json
        for user in ("ann", "bob", "ann")
    ]
    assert [one["request"] for one in told] == ["1"] * 3
    assert told[0] == told[2] != told[1]


def test_what_exceeds_the_queue_the_body_or_the_time_is_refused(
    serve: Serve, config: Config, monkeypatch: Any
):
    system, entered, go = pbr_jax.open(config), threading.Semaphore(0), threading.Event()

    def slow(user: str, text: str, **_: Any) -> Any:
        entered.release()
        assert go.wait(60)
        return original(user, text)

    original = system.ask
    monkeypatch.setattr(system, "ask", slow)
    client = serve(system, limits=Limits(queue=2, body=1000))
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(client.ask, "about tea", user="ann") for _ in range(2)]
        for _ in asked:
            assert entered.acquire(timeout=60)
        refused = client.ask("about tea", user="ann")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert client("GET", "/healthz").status == 200
        go.set()
        assert [one.result().status for one in asked] == [200, 200]
    assert client.ask("x" * 1000, user="ann").status == 413
    go.clear()
    late = serve(system, limits=Limits(seconds=0.05))
    assert late.ask("about tea", user="ann").status == 504
    go.set()
