"""What stands between a network and an application: bounds, time limits, a queue, and errors without texts.

Nothing that a caller sent is repeated in an error or a log: neither names nor texts.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pbr_jax.base import terminal
from pbr_jax.base.files import parse_json

T = TypeVar("T")


class Limits(NamedTuple):
    """Bounds of a server: requests that are worked on or wait at the same time, seconds for each, seconds
    until a body has arrived, and its bytes."""

    queue: int = 64
    seconds: float = 120.0
    arrival: float = 20.0
    body: int = 1 << 20


class Fault(Exception):
    """An error that the caller is told, in words that repeat nothing of the request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "code": self.status, "param": None}}


class Work:
    """Runs functions in threads, a limited number at a time. Others are refused, so none waits for long."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._threads = limits, ThreadPoolExecutor(limits.queue, "pbr_jax.serve")
        self.under_way = 0

    async def __call__(self, function: Callable[..., T], *values: Any, **options: Any) -> T:
        """The function's result. Raises Fault 429 if too many are under way, and 504 after the time limit;
        the function itself goes on then, and counts until it ends."""
        if self.under_way >= self._limits.queue:
            raise Fault(429, "too many requests are under way; try again in a second")
        self.under_way += 1
        loop = asyncio.get_running_loop()
        future: Future[T] = self._threads.submit(function, *values, **options)
        future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._ended))
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self._limits.seconds)
        except TimeoutError:
            raise Fault(504, f"no result within {self._limits.seconds:g} s") from None

    def _ended(self) -> None:
        self.under_way -= 1


class Metrics:
    """Requests by route, method and status, and their seconds, as Prometheus reads them."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, float]] = {}

    def add(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request; `route` is the pattern of its path, which holds no names."""
        labels = f'{{route="{route}",method="{method}",status="{status}"}}'
        count, total = self._found.get(labels, (0, 0.0))
        self._found[labels] = count + 1, total + seconds

    def text(self, under_way: int) -> str:
        """The numbers in Prometheus's text format."""
        lines = ["# TYPE pbr_jax_under_way gauge", f"pbr_jax_under_way {under_way}"]
        for place, name in enumerate(("pbr_jax_requests_total", "pbr_jax_request_seconds_total")):
            lines.append(f"# TYPE {name} counter")
            lines += [f"{name}{labels} {found[place]}" for labels, found in sorted(self._found.items())]
        return "\n".join(lines) + "\n"


class Guard:
    """An ASGI application around another one, which reads bodies within the limits and answers for errors.

    `hosts` are the names under which the server may be called; (): any. On a machine's own address this keeps
    web pages of others from calling it by a name of theirs. `admit` gets the header Authorization of calls of
    the API and raises Fault, so that of callers without a key no body is read.
    """

    def __init__(
        self,
        app: Any,
        *,
        limits: Limits,
        metrics: Metrics,
        admit: Callable[[str | None], object],
        hosts: Sequence[str] = (),
    ) -> None:
        self._app, self._limits, self._metrics, self._hosts = app, limits, metrics, hosts
        self._admit = admit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def sent(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._check_origin(scope)
            body = await self._body(scope, receive)
            if body is not None:
                await self._app(scope, _replayed(body, receive), sent)
        except Exception as error:
            if not isinstance(error, Fault):
                log(error)
            if not status:
                await _answer(error if isinstance(error, Fault) else Fault(500, "internal error"), sent)
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.add(route, method, status, time.perf_counter() - start)

    def _check_origin(self, scope: Any) -> None:
        """Raises Fault if the host is another one, another site's page has sent the request, or the key is
        unknown."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        try:
            name = urlsplit(f"//{host}").hostname
            foreign = origin is not None and urlsplit(origin).netloc != host
        except ValueError:
            raise Fault(400, "the header Host or Origin is malformed") from None
        if foreign or (self._hosts and name not in self._hosts):
            raise Fault(403, "the request names another host, or comes from another site's page")
        if scope["path"].startswith("/v1/"):
            self._admit(headers.get(b"authorization"))

    async def _body(self, scope: Any, receive: Any) -> bytes | None:
        """The whole body; None if the caller has left."""
        most, body = self._limits.body, bytearray()
        try:
            async with asyncio.timeout(self._limits.arrival):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise Fault(413, f"the body has more than {most} bytes")
                    if not message.get("more_body"):
                        _refuse_halves(body)
                        return bytes(body)
        except TimeoutError:
            raise Fault(408, f"the body did not arrive within {self._limits.arrival:g} s") from None


def _refuse_halves(body: bytes | bytearray) -> None:
    """Raises Fault for JSON with half of a surrogate pair, which no answer and no file can hold."""
    with contextlib.suppress(ValueError):  # what is no JSON the application refuses
        if b"\\u" in body and re.search(
            "[\ud800-\udfff]", json.dumps(parse_json(bytes(body)), ensure_ascii=False)
        ):
            raise Fault(400, "the body holds half of a character")


_METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")


def _replayed(body: bytes, receive: Any) -> Any:
    """Gives the body first, and then what else there is."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return first.pop() if first else await receive()

    return replay


async def _answer(fault: Fault, send: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    if fault.status in (401, 408, 413):  # the body was not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": fault.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(fault.body).encode()})


def log(error: BaseException) -> None:
    """Logs the kind of an error and where it was raised, without its message, which may hold texts."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    terminal.err(f"pbr-jax: {type(error).__name__}{place}")
