"""One request and its whole answer, within a time and a size that no server can stretch: requests are
tasks of an event loop, which ends them in a look-up, in headers or in a body."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.models.pretrained import one_line

if TYPE_CHECKING:
    import httpx2

LARGEST = 16 << 20
"""Bytes of an answer after decompression; the log-probabilities of 100,000 tokens have room in them."""

LARGEST_ERROR = 64 << 10
"""Bytes that are read of an error."""


class Reply(NamedTuple):
    """What a server answered; `cut` where that was longer than what is read. `codings`: compressions inside
    one another; of more than one nothing is read, for a few kilobytes can take minutes."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes
    cut: bool
    codings: int


class Exchange:
    """Connections to a server, and the thread of their event loop. Creating one opens and starts none."""

    def __init__(self, concurrency: int) -> None:
        self.http = _open(concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._under_way: set[Future[Reply]] = set()

    def post(self, address: str, content: bytes, headers: Mapping[str, str], seconds: float) -> Reply:
        """Sends a body and reads the answer.

        Raises TimeoutError where the whole took longer than `seconds`, concurrent.futures.CancelledError
        after `cancel`, httpx2.RequestError where the connection failed.
        """
        task = self._post(address, content, headers, seconds)
        future = asyncio.run_coroutine_threadsafe(task, self._running())
        self._under_way.add(future)
        try:
            return future.result()
        finally:
            self._under_way.discard(future)

    def cancel(self) -> None:
        """Gives up the requests that are under way."""
        for future in list(self._under_way):
            future.cancel()

    async def _post(self, address: str, content: bytes, headers: Mapping[str, str], seconds: float) -> Reply:
        async with (
            asyncio.timeout(seconds),
            self.http.stream("POST", address, content=content, headers=headers) as response,
        ):
            limit = LARGEST if response.is_success else LARGEST_ERROR
            listed = response.headers.get_list("content-encoding", split_commas=True)
            codings = sum(name.strip().lower() not in ("", "identity") for name in listed)
            body = await _read(response, limit) if codings < 2 else b""
            status, reason, cut = response.status_code, response.reason_phrase, len(body) > limit
            return Reply(status, reason, response.headers, body[:limit], cut, codings)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(self._loop,), name="pbr_jax.http", daemon=True)
                thread.start()
                weakref.finalize(self, _close, self._loop, thread, self.http)
            return self._loop


async def _read(response: "httpx2.Response", limit: int) -> bytes:
    """The body, or somewhat more than `limit` bytes of it."""
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            body += part
            if len(body) > limit:
                break
    return bytes(body)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _close(loop: asyncio.AbstractEventLoop, thread: threading.Thread, http: "httpx2.AsyncClient") -> None:
    """Closes the connections, then ends the loop; waits for that a moment, unless called in the loop."""

    async def end() -> None:
        try:
            await http.aclose()
            await loop.shutdown_asyncgens()
        finally:
            loop.stop()

    asyncio.run_coroutine_threadsafe(end(), loop)
    if threading.current_thread() is not thread:
        thread.join(2.0)


def _open(concurrency: int) -> "httpx2.AsyncClient":
    import httpx2

    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    try:
        # The only limit of time is that of the whole request.
        return httpx2.AsyncClient(
            timeout=None, limits=limits, follow_redirects=False, headers={"Accept-Encoding": "gzip"}
        )
    except (ValueError, ImportError) as error:
        raise UserError(
            f"the proxy or certificate settings of the environment cannot be used: {one_line(error)}; "
            "see HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from None
