"""Servers that mean no good: slow ones, vast ones, and what an interruption leaves."""

import gzip
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from servers import Fault, Server, fake_answer

from pbr_jax.base.types import UserError
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.http.client import LARGEST, Client, Refused

pytestmark = pytest.mark.long  # bodies of hundreds of megabytes, and deadlines that have to pass

GOING = threading.Event()  # never set
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PATIENCE = 60  # seconds after which something hangs


def client(**fields: Any) -> Client:
    options: dict[str, Any] = dict(key_variable="", concurrency=2, timeout=1.0, retries=0)
    return Client(**{**options, **fields}, pause=lambda stop, seconds: None)


@contextmanager
def raw_server(send: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """A server that sends these bytes to whoever connects, as long as somebody listens; its address."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            for part in send():
                if ended.is_set():
                    return
                connection.sendall(part)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def dripped(*parts: bytes) -> Iterator[bytes]:
    """A byte every tenth of a second, which no limit on a silence minds."""
    for byte in itertools.chain.from_iterable(parts):
        time.sleep(0.1)
        yield bytes([byte])


DRIPS: dict[str, Callable[[], Iterator[bytes]]] = {
    "headers": lambda: dripped(b"HTTP/1.1 200 OK\r\n", b"X-Slow: " + b"x" * 2000),
    "chunks": lambda: itertools.chain(
        [HEAD, b"Transfer-Encoding: chunked\r\n\r\n"],
        (b"1\r\n" + byte + b"\r\n" for byte in dripped(b" " * 900)),
    ),
    "body": lambda: itertools.chain([HEAD, b"Content-Length: 900\r\n\r\n"], dripped(b" " * 900)),
    "error": lambda: itertools.chain(
        [b"HTTP/1.1 400 No\r\nContent-Length: 900\r\n\r\n"], dripped(b" " * 900)
    ),
}


@pytest.mark.parametrize("name", DRIPS)
def test_a_server_that_drips_is_left_when_the_time_is_over(name):
    start = time.monotonic()
    with raw_server(DRIPS[name]) as url, pytest.raises(UserError, match=r"within 1 s, after 2 tries"):
        client(retries=1).post(url, {}, GOING)
    assert time.monotonic() - start < 20  # it would drip for a minute and more


def test_a_large_answer_ends_early_and_is_not_asked_for_again():
    bomb = gzip.compress(b'{"choices": "' + b"x" * (LARGEST + 1000) + b'"}')
    fault = Fault(headers={"Content-Encoding": "gzip"}, body=bomb)
    with Server(fake_answer, [fault] * 2) as server:
        with pytest.raises(UserError, match="the answer is over 16 MiB"):
            client(retries=3, timeout=30.0).post(server.url, {}, GOING)
        assert len(server.requests) == 1


def test_an_endless_error_is_read_to_its_first_words():
    words = b'{"error": {"message": "no"}' + b" " * (1 << 20)
    with Server(fake_answer, [Fault(400, body=words)]) as server, pytest.raises(Refused, match=r"400 .*no"):
        client(timeout=30.0).post(server.url, {}, GOING)


# -- What is not tried again ---------------------------------------------------------------------

QUOTAS = {
    "402": Fault(402, body=b'{"error": {"message": "Insufficient credits"}}'),
    "code": Fault(429, body=b'{"error": {"message": "You exceeded", "code": "insufficient_quota"}}'),
    "type": Fault(429, {"Retry-After": "1"}, body=b'{"error": {"type": "insufficient_quota"}}'),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_spent_quota_is_not_asked_again(name):
    with Server(fake_answer, [QUOTAS[name]] * 4) as server:
        with pytest.raises(Refused, match=r"answered 4.*; the account's quota is spent: add to it"):
            client(retries=3).post(server.url, {}, GOING)
        assert len(server.requests) == 1


def test_https_to_a_server_without_it_is_not_tried_again():
    connections = []

    def send() -> Iterator[bytes]:
        connections.append(1)
        yield b"HTTP/1.1 400 Bad Request\r\n\r\n"

    with raw_server(send) as url, pytest.raises(UserError, match=r"no secure connection .*check llm\.url"):
        client(retries=3, timeout=10.0).post(url.replace("http:", "https:"), {}, GOING)
    assert len(connections) == 1


def test_a_certificate_that_is_not_trusted_is_not_tried_again(tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=me"]
    try:
        made = subprocess.run([*command, "-keyout", key, "-out", certificate], capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed, so there is no certificate")
    assert made.returncode == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handshakes = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                handshakes.append(1)
                with connection, suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UserError, match=r"no secure connection \(.*VERIFY_FAILED.*SSL_CERT_FILE"):
            client(retries=3, timeout=10.0).post(
                f"https://127.0.0.1:{listener.getsockname()[1]}/v1", {}, GOING
            )
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(handshakes) == 1


# -- Interruptions -------------------------------------------------------------------------------

INTERRUPTED = """
import signal
import sys
from pathlib import Path
from pbr_jax import config
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.http.backend import HTTPLLM
from pbr_jax.llm.protocol import Sampling

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started pytest with "&"
options = config.LLM(backend="http", model="m", url=sys.argv[1], concurrency=int(sys.argv[3]))
llm = Cached(HTTPLLM(options), Path(sys.argv[2]))
try:
    llm.generate([f"p{n}" for n in range(20)], Sampling(4))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process")
@pytest.mark.parametrize("concurrency", [4])
def test_an_interruption_keeps_the_eight_answers_that_had_come(file: Path, concurrency: int):
    """The ninth request and all later ones are never answered, and do not hold the process either."""
    released, answered, asked = threading.Event(), threading.Semaphore(0), itertools.count(1)

    def answer(path: str, request: Any) -> tuple[int, Any]:
        if next(asked) > 8:
            answered.release()
            released.wait(PATIENCE)
        return fake_answer(path, request)

    with Server(answer) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.url, str(file), str(concurrency)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for _ in range(min(concurrency, 12)):
            assert answered.acquire(timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        try:
            _, told = process.communicate(timeout=20)
        finally:
            released.set()
            process.kill()
            process.wait()
    assert (process.returncode, told) == (130, "")
    assert Answers(file).export(file.with_name("export.jsonl")) == 8


def test_what_comes_shortly_after_an_interruption_is_kept():
    """Three are under way when the first one's telling is interrupted: it is told again, and so are they."""
    told: list[int] = []
    come = threading.Event()

    def finish(place: int, value: int) -> None:
        if not told and not come.is_set():
            come.set()
            raise KeyboardInterrupt
        told.append(value)

    def job(n: int, stop: threading.Event) -> int:
        if n:
            assert stop.wait(PATIENCE)
        return n

    with pytest.raises(KeyboardInterrupt):
        client(concurrency=3).run([lambda stop, n=n: job(n, stop) for n in range(9)], finish)
    assert sorted(told)[:3] == [0, 1, 2]
    assert len(told) <= 4
