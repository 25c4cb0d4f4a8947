"""A server on 127.0.0.1 for a memory system: embeddings by our encoder, and chats that are passed on.

Both are OpenAI-compatible. What a system spends on models is counted here, whatever it says itself.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from pbr_jax.base.files import parse_json

_MOST = 32 << 20  # bytes of a request

Encode = Callable[[list[str]], np.ndarray]


class Server:
    """Runs while it is open as a context manager.

    Args:
      encode: texts to vectors, float32 [n d], for `/v1/embeddings`; called by one thread at a time.
      upstream: base URL of the server that gets `/v1/chat/completions`. "": they are refused.
      key: the API key of that server.
      timeout: seconds that it may take for an answer.

    `counts` has `embedding_calls`, `embedding_texts`, `embedding_seconds`, `chat_calls`, `chat_failed`,
    `chat_seconds`, `chat_prompt_tokens` and `chat_completion_tokens`.
    """

    def __init__(self, encode: Encode, upstream: str = "", key: str = "", timeout: float = 600.0) -> None:
        self.counts = defaultdict[str, float](int)
        self._encode, self._upstream, self._key, self._timeout = encode, upstream.rstrip("/"), key, timeout
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True

    @property
    def url(self) -> str:
        """The base URL, which ends with /v1."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> "Server":
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def embeddings(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the reply to a request for embeddings."""
        given = request.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
            return 400, _error("input is no text and no list of texts")
        with self._lock:
            vectors = self._encode(list(texts))
        self._count(embedding_texts=len(texts))
        data = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]
        return 200, {"object": "list", "model": str(request.get("model", "")), "data": data, "usage": _NONE}

    def chat(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the reply of the server to a request for an answer."""
        if not self._upstream:
            return 503, _error("no server for a language model was given")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key or 'none'}"}
        body = json.dumps({**request, "stream": False}).encode()
        asked = urllib.request.Request(f"{self._upstream}/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=self._timeout) as reply:
                found = parse_json(reply.read(_MOST))
        except urllib.error.HTTPError as error:
            self._count(chat_failed=1)
            return error.code, _error(f"the server answered {error.code}")
        except (OSError, ValueError) as error:
            self._count(chat_failed=1)
            return 502, _error(f"the server cannot be reached ({type(error).__name__})")
        usage = found.get("usage") or {}
        self._count(**{f"chat_{name}": int(usage.get(name) or 0) for name in _TOKENS})
        return 200, found

    def handle(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the reply to any request, which is counted."""
        calls = {
            "/v1/embeddings": ("embedding", self.embeddings),
            "/v1/chat/completions": ("chat", self.chat),
        }
        if path not in calls:
            return 404, _error(f"no such path; there are {' and '.join(calls)}")
        name, call = calls[path]
        start = time.perf_counter()
        try:
            return call(request)
        finally:
            self._count(**{f"{name}_calls": 1, f"{name}_seconds": time.perf_counter() - start})

    def _count(self, **counts: float) -> None:
        with self._counting:
            for name, count in counts.items():
                self.counts[name] += count


_TOKENS = ("prompt_tokens", "completion_tokens")
_NONE = {"prompt_tokens": 0, "total_tokens": 0}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            try:
                size = int(self.headers.get("Content-Length", ""))
                request = parse_json(self.rfile.read(size)) if 0 <= size <= _MOST else None
            except ValueError:
                request = None
            if isinstance(request, dict):
                status, reply = server.handle(self.path, request)
            else:
                status, reply = 400, _error("the body is no JSON object of a known size")
                self.close_connection = True
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged: requests hold users' texts."""

    return Handler
