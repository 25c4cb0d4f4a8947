"""Servers on this machine that speak OpenAI's protocol: a made-up one with faults, and a real model.

`Server(fake_answer, script)` answers by a formula and makes mistakes by a script. `serve_llm(llm)` puts a
language model of this process behind the same protocol, in all three dialects of log-probabilities.
"""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from tiny import save_byte_tokenizer

Json = Any
Answer = Callable[[str, Json], tuple[int, Json]]
"""(path, request) -> (status, answer)"""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # in place of the answer
    edit: Callable[[Json], Json] | None = None  # changes the answer
    cut: int | None = None  # the connection is closed after so many bytes of the body
    hang_up: bool = False  # the connection is closed without an answer
    delay: float = 0.0  # seconds before the answer


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    path: str
    headers: Mapping[str, str]
    body: Json


class Server:
    """An HTTP server on a free port, used as a context manager."""

    def __init__(
        self, answer: Answer, script: Sequence[Fault | None] = (), *, delay: float = 0.0, port: int = 0
    ):
        """The n-th request suffers the n-th fault of the script; later ones none."""
        self.requests: list[Seen] = []
        self.most_at_once = 0
        self._at_once = 0
        self._answer = answer
        self._script = iter(script)
        self._delay = delay
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def take(self, seen: Seen) -> tuple[Fault, int, Json]:
        """The fault, status and answer of a request."""
        with self._lock:
            self.requests.append(seen)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = next(self._script, None) or Fault()
        try:
            time.sleep(self._delay + fault.delay)
            if fault.body is not None or fault.status != 200:
                return fault, fault.status, None
            status, answer = self._answer(seen.path, seen.body)
            return fault, status, fault.edit(answer) if fault.edit else answer
        finally:
            with self._lock:
                self._at_once -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10  # an idle connection's thread ends
    owner: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault, status, answer = self.owner.take(Seen(self.path, dict(self.headers), body))
        if fault.hang_up:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        content = json.dumps(answer).encode() if fault.body is None else fault.body
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **fault.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: fault.cut])
            if fault.cut is not None:
                self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


# -- Answers by a formula ------------------------------------------------------------------------


def fake_log_prob(place: int, token: int) -> float:
    """What the made-up model says about a token at a place."""
    return -((7 * token + 3 * place) % 13) / 8 - 0.125


def fake_score(model: Path, prompt: Any, target: str) -> Any:
    """What the formula gives a target: by the places and ids of its tokens behind the prompt's."""
    from pbr_jax.llm import Score
    from pbr_jax.llm.tokens import chat

    codec = chat.load(model)
    first, second = codec.encode(prompt), codec.encode_target(target)
    return Score(sum(fake_log_prob(len(first) + n, token) for n, token in enumerate(second)), len(second))


def fake_answer(path: str, request: Json) -> tuple[int, Json]:
    """A model that repeats its prompt, with the seed where there is one, and knows all log-probabilities."""
    if path == "/v1/chat/completions":
        text = f"{request['messages'][-1]['content']}!{request.get('seed', '')}"
        return 200, {"choices": [{"message": {"role": "assistant", "content": text}}] * request.get("n", 1)}
    ids = request.get("input_ids") or request.get("prompt")
    if isinstance(ids, str):
        return 200, {"choices": [{"text": f"{ids}?{request.get('seed', '')}"}] * request.get("n", 1)}
    values = [fake_log_prob(place, token) for place, token in enumerate(ids)]
    return 200, in_dialect(path, request, values, {0: -0.5}, -1.5)


def in_dialect(
    path: str, request: Json, values: Sequence[float], others: Mapping[int, float], generated: float
) -> Json:
    """The log-probabilities of a prompt's tokens (the first of them means nothing), as a server tells them.

    `others` are further tokens that stand at every place, `generated` is that of the new token.
    """
    if path == "/generate":
        start, ids = request["logprob_start_len"], request["input_ids"]
        listed = [[value, token, None] for value, token in zip(values, ids)][start:]
        listed[0][0] = None
        return {"text": "x", "meta_info": {"prompt_tokens": len(ids), "input_token_logprobs": listed}}
    if request.get("echo"):
        told = [None, *values[1:], generated][: len(values) + min(1, request["max_tokens"])]
        return {
            "choices": [{"text": "...x", "logprobs": {"token_logprobs": told, "tokens": ["?"] * len(told)}}]
        }
    entries: list[Any] = [None]
    for value, token in itertools.islice(zip(values, request["prompt"]), 1, None):
        told = {**others, token: value}
        entries.append({str(i): {"logprob": v, "rank": 1, "decoded_token": "?"} for i, v in told.items()})
    return {"choices": [{"text": "x", "prompt_logprobs": entries}]}


# -- A real model --------------------------------------------------------------------------------


@contextlib.contextmanager
def serve_llm(llm: Any) -> Iterator[Server]:
    """A decoder-only language model of this process behind the protocol; it answers one request at a time."""
    from pbr_jax.base.types import UserError
    from pbr_jax.llm import Sampling
    from pbr_jax.llm.engine import scoring

    alone = threading.Lock()

    def reply(at: str, request: Json) -> Json:
        ids = request.get("input_ids") or request.get("prompt")
        if isinstance(ids, list):
            [row] = scoring.log_probabilities(llm._engine, [((ids[0],), tuple(ids[1:]))])
            return in_dialect(at, request, [0.0, *row.tolist()], {}, -1.0)
        options = {name: request[name] for name in ("temperature", "top_p", "seed") if name in request}
        options["max_new_tokens"] = request["max_tokens"]
        if request.get("use_beam_search"):
            options["num_beams"] = request["n"]
        [text] = llm.generate([request.get("messages") or request["prompt"]], Sampling(**options))
        if at.endswith("/chat/completions"):
            return {"choices": [{"message": {"role": "assistant", "content": text}}]}
        return {"choices": [{"text": text}]}

    def answer(at: str, request: Json) -> tuple[int, Json]:
        try:
            with alone:
                return 200, reply(at, request)
        except Exception as error:  # a UserError is the request's fault, all else the server's
            status = 400 if isinstance(error, UserError) else 500
            return status, {"error": {"message": f"{type(error).__name__}: {error}"}}

    with Server(answer) as server:
        yield server


# -- A tiny model --------------------------------------------------------------------------------


def write_tiny(path: Path, *, seed: int = 3, context: int = 96) -> None:
    """A folder with a random two-layer Llama, a byte-level tokenizer without merges and a chat template."""
    from safetensors.numpy import save_file

    count = save_byte_tokenizer(path)
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[a]"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    sizes = dict(
        vocab_size=count, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context, rms_norm_eps=1e-6,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, hidden_act="silu",
    )  # fmt: skip
    (path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes})
    )
    shapes = {"model.embed_tokens": (count, 32), "lm_head": (count, 32)}
    for layer in range(2):
        for name, shape in {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}.items():
            shapes[f"model.layers.{layer}.self_attn.{name}_proj"] = shape
        for name, shape in {"gate": (48, 32), "up": (48, 32), "down": (32, 48)}.items():
            shapes[f"model.layers.{layer}.mlp.{name}_proj"] = shape
    random = np.random.default_rng(seed)
    tensors = {
        f"{name}.weight": random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }
    norms = ["model.norm", *(f"model.layers.{i}.input_layernorm" for i in range(2))]
    norms += [f"model.layers.{i}.post_attention_layernorm" for i in range(2)]
    tensors |= {f"{name}.weight": np.ones(32, np.float32) for name in norms}
    save_file(tensors, str(path / "model.safetensors"))
