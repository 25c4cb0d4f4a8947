"""Systems of a few users that find documents by BM25 and answer by a server of this process.

And a client of the web server that knows nothing of the package.
"""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.config import Config, override

HISTORIES = {"ann": ["i love tea", "tea and cats"], "bob": ["football that day", "violins"], "cyd": []}


class _Echo(BaseHTTPRequestHandler):
    """A model that repeats its prompt, so an answer has all that the model saw."""

    protocol_version = "HTTP/1.1"
    together: threading.Barrier | None = None  # of requests that must be there at the same time

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.together is not None:
            self.together.wait(60)
        text = " ".join(" ".join(message["content"] for message in request["messages"]).split())
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


@contextlib.contextmanager
def echoing(root: Path, together: threading.Barrier | None = None, **fields: Any) -> Iterator[Config]:
    """The config of a system over the data at `root`, while its model can be asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Echo", (_Echo,), {"together": together}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "benchmark.training": "none"}
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        llm = {"llm.backend": "http", "llm.url": url, "llm.model": "m", "llm.retries": 0}
        small = {"retrieve.method": "bm25", "retrieve.k": 3, "eval.likelihood": "off"}
        long = {"prompt.max_tokens": 400, "generate.max_new_tokens": 400}
        yield override(Config(), {**place, **llm, **small, **long, **fields})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client by the standard library, with a connection for each request."""

    def __init__(self, port: int, key: str | None = None, user: str | None = None) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}/v1"
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._headers |= {} if user is None else {"X-PBR-User": user}

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **self._headers, **headers}
        with contextlib.closing(connection):
            connection.request(method, path, content, given)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())

    def ask(self, text: str, **fields: Any) -> Answer:
        messages = [{"role": "user", "content": text}]
        return self("POST", "/v1/chat/completions", {"messages": messages, **fields})
