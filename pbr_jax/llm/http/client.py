"""Requests to a language model's server: several at once, tried again where the fault may pass, one secret.

The key is read from the environment for every request and goes into the `Authorization` header alone.
Redirects are not followed. Where a server repeats the key, errors have "[key]" in its place, and an answer is
refused (docs/concepts/security.md).
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pbr_jax.base.types import UserError
from pbr_jax.llm.http.replies import error_status, message_of
from pbr_jax.models.pretrained import one_line

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
Job = Callable[[threading.Event], T]
"""One request and the reading of its answer. The event is set once the call has failed elsewhere."""

LARGEST = 16 << 20
"""Bytes of an answer after decompression; the log-probabilities of 100,000 tokens have room in them."""

LARGEST_ERROR = 64 << 10
"""Bytes that are read of an error."""

_starting = threading.Lock()
_PASSING = frozenset({408, 409, 425, 429})  # and 5xx: the same request may succeed later
_SPENT = ("insufficient_quota", "billing_hard_limit_reached")  # a 429 that no waiting mends
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds
_LONGEST_RETRY_AFTER = 60.0  # seconds; a server that asks for more is asked again after this much
_LONGEST_MESSAGE = 300  # characters of a server's words in an error
_SHORTEST = 8  # characters of a secret; a shorter key ("EMPTY", "none") may stand in any answer
_LAST_WAIT = 5.0  # seconds after an interruption in which answers that are under way may still come


class Refused(UserError):
    """The server understood and will not: a status that trying again does not change."""

    def __init__(self, line: str, status: int, words: str):
        super().__init__(line)
        self.status = status
        self.words = words  # the whole of what the server said, without the key


class _Fault(NamedTuple):
    """Why a try failed that is worth another one."""

    what: str
    advice: str
    after: float = 0.0  # seconds the server asked to wait


class Client:
    """Posts JSON to a server. Creating one opens no connection."""

    def __init__(
        self,
        *,
        key_variable: str,
        concurrency: int,
        timeout: float,
        retries: int,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ):
        """`timeout` is in seconds, for one try from connecting to the answer's last byte. `pause(stop,
        seconds)` waits before a further try, and no longer than until `stop` is set."""
        self._key_variable = key_variable
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._pause = pause
        self._http = _open(concurrency)
        self._under_way: set[Future[Reply]] = set()
        weakref.finalize(
            self, lambda http: asyncio.run_coroutine_threadsafe(http.aclose(), _loop()), self._http
        )

    def run(self, jobs: Iterable[Job[T]], finish: Callable[[int, T], None]) -> None:
        """Runs the jobs, at most `concurrency` at once, and calls `finish(place, result)` in the calling
        thread.

        After a failure no further job is started; those under way are finished, then the failure is
        raised. After an interruption (Ctrl-C) those under way have some seconds; `finish` is called again
        for a result at which it was interrupted.
        """
        stop = threading.Event()
        failure: BaseException | None = None
        waiting = enumerate(jobs)
        running: dict[Future[T], int] = {}
        with ThreadPoolExecutor(self._concurrency) as pool:

            def start(count: int) -> None:
                for place, job in itertools.islice(waiting, count):
                    running[pool.submit(job, stop)] = place

            try:
                start(self._concurrency)
                while running:
                    finished, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in finished:
                        error = future.exception()
                        if error is not None:
                            failure = failure or error
                            stop.set()
                        elif failure is None:
                            start(1)
                        if error is None:
                            finish(running[future], future.result())
                        del running[future]
            except KeyboardInterrupt:
                stop.set()
                finished, _ = wait(running, _LAST_WAIT)
                for future in finished:
                    if future.exception() is None:
                        finish(running[future], future.result())
                raise
            finally:
                stop.set()
                while wait(running, 0.1).not_done:
                    for future in list(self._under_way):
                        future.cancel()
        if failure is not None:
            raise failure

    def post(self, address: str, body: Mapping[str, Any], stop: threading.Event) -> dict[str, Any]:
        """The JSON object that the server answers.

        Timeouts, cut connections, answers that are not JSON, and statuses 408, 409, 425, 429 and 5xx are
        tried again, `retries` times, until `stop` is set: after a random wait of up to 1, 2, 4, ... 30
        seconds (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter), or after what
        the server's Retry-After says, at most a minute.

        Raises:
          Refused: any other status that is not a success, or a quota that is spent.
          UserError: the last try failed too, the key cannot be sent, or the answer repeats it.
        """
        content = json.dumps(body).encode()
        tries = 0
        while True:
            tries += 1
            outcome = self._try(address, content)
            if isinstance(outcome, dict):
                return outcome
            if tries > self._retries or stop.is_set():
                break
            self._pause(stop, backoff(tries, outcome.after))
        times = "1 try" if tries == 1 else f"{tries} tries"
        raise UserError(f"{address}: {outcome.what}, after {times}; {outcome.advice}")

    def _try(self, address: str, content: bytes) -> dict[str, Any] | _Fault:
        import httpx2

        key = read_key(self._key_variable)
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            reply = self._sent(address, content, headers)
        except TimeoutError:
            advice = "raise llm.timeout or lower llm.concurrency"
            return _Fault(f"no answer within {self._timeout:g} s", advice)
        except CancelledError:
            return _Fault("the request was interrupted", "run again: what was answered is kept")
        except httpx2.RequestError as error:
            inner = _innermost(error)
            # The system's words where it has a number, for libraries say "Connect call failed".
            number = (
                inner.errno if isinstance(inner, OSError) and not isinstance(inner, ssl.SSLError) else None
            )
            reason = _shorten(os.strerror(number) if number and number > 0 else one_line(inner), key)
            closed = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
            if isinstance(inner, ssl.SSLError) and not isinstance(inner, closed):
                advice = "check llm.url (http or https) and SSL_CERT_FILE, the certificates that are trusted"
                raise UserError(f"{address}: no secure connection ({reason}); {advice}") from None
            return _Fault(f"the connection failed ({reason})", "start the server, or check llm.url")
        if reply.codings > 1:
            raise UserError(
                f"{address}: the answer is compressed {reply.codings} times over, want once at most; "
                "check llm.url, and what stands before the server"
            )
        if not 200 <= reply.status < 300:
            return _refusal(address, reply, reply.status, key, self._key_variable)
        if reply.cut:
            raise UserError(
                f"{address}: the answer is over {LARGEST >> 20} MiB, which no answer is; check llm.url"
            )
        try:
            answer = json.loads(reply.content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            begin = _shorten(reply.words, key, 60)
            return _Fault(
                f"the answer is not a JSON object (it begins {begin!r})",
                "check that llm.url is where the API starts, or see the server's log",
            )
        if len(key) >= _SHORTEST and key in json.dumps(answer):
            raise UserError(
                f"{address}: the answer repeats the key of {self._key_variable}, so nothing of it is kept; "
                "check llm.url, and replace the key"
            )
        status = error_status(answer)
        return _refusal(address, reply, status, key, self._key_variable) if status else answer

    def _sent(self, address: str, content: bytes, headers: Mapping[str, str]) -> "Reply":
        """What the server answers. Raises TimeoutError, CancelledError after an interruption, or
        httpx2.RequestError where the connection failed."""

        async def send() -> Reply:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream("POST", address, content=content, headers=headers) as response,
            ):
                limit = LARGEST if response.is_success else LARGEST_ERROR
                listed = response.headers.get_list("content-encoding", split_commas=True)
                codings = sum(name.strip().lower() not in ("", "identity") for name in listed)
                body = await _body(response, limit) if codings < 2 else b""
                status, reason, cut = response.status_code, response.reason_phrase, len(body) > limit
                return Reply(status, reason, response.headers, body[:limit], cut, codings)

        future = asyncio.run_coroutine_threadsafe(send(), _loop())
        self._under_way.add(future)
        try:
            return future.result()
        finally:
            self._under_way.discard(future)


def _innermost(error: BaseException) -> BaseException:
    """What the system said of a failed connection, below what libraries make of it; else the error itself."""
    innermost, inner = error, error.__cause__ or error.__context__
    while inner is not None:
        innermost = inner if isinstance(inner, OSError) else innermost
        group = inner if isinstance(inner, BaseExceptionGroup) else None
        inner = group.exceptions[0] if group else inner.__cause__ or inner.__context__
    return innermost


def _refusal(address: str, reply: "Reply", status: int, key: str, key_variable: str) -> _Fault:
    """The fault of a status that is no success. Raises Refused where trying again changes nothing."""
    words = reply.words
    whole = f"{_server_message(reply)}\n{words}"
    message = _shorten(_server_message(reply), key)
    answered = str(reply.status) if reply.status >= 300 else f"{reply.status} with an error"
    what = f"the server answered {answered} ({message})"
    spent = status == 402 or (status == 429 and any(code in words for code in _SPENT))
    if not spent and (status in _PASSING or status >= 500):
        advice = "lower llm.concurrency, raise llm.retries, or see the server's log"
        return _Fault(what, advice, retry_after(reply.headers.get("Retry-After")))
    advice = "the account's quota is spent: add to it" if spent else _advice(status, message, key_variable)
    raise Refused(f"{address}: {what}; {advice}", status, redact(whole, key))


def read_key(variable: str) -> str:
    """The key in an environment variable, "" where there is none; UserError where no header can carry it."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        raise UserError(
            f"the environment variable {variable} holds characters that no key has (a line break, an "
            "accent); set it again"
        )
    return key


def redact(text: str, key: str) -> str:
    """The text with "[key]" in the key's place."""
    return text.replace(key, "[key]") if key else text


def check_url(url: str) -> str:
    """The address without a slash at its end, if it is a scheme, a host and a path and nothing more. Raises
    UserError: it is not; the message does not quote it, for it may hold a password."""
    import httpx2

    try:
        httpx2.URL(url)  # also knows what no host is called
        parts = urlsplit(url)
        good = bool(parts.hostname) and (parts.port or 1) > 0 and url.isprintable() and " " not in url
    except (ValueError, httpx2.InvalidURL):
        good = False
        parts = urlsplit("")
    if not good or parts.query or parts.fragment or "@" in parts.netloc:
        raise UserError(
            "llm.url must be scheme, host and path alone, such as http://127.0.0.1:8000/v1; "
            "a key belongs in the environment variable that llm.key_variable names"
        )
    return url.rstrip("/")


def backoff(tries: int, after: float = 0.0) -> float:
    """Seconds to wait after so many failed tries, not less than `after`."""
    return max(after, random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(tries - 1, 16))))


def retry_after(value: str | None) -> float:
    """Seconds that a Retry-After header asks for (a number or a date), from 0 to 60; 0 if it says neither."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, min(seconds, _LONGEST_RETRY_AFTER))


def _server_message(reply: "Reply") -> str:
    """What the server says about an error, wherever it puts it."""
    if reply.status in (301, 302, 303, 307, 308):
        return f"a redirect to {reply.headers.get('Location', 'nowhere')}"
    try:
        body = json.loads(reply.words)
    except (ValueError, RecursionError):
        return reply.words or reply.reason
    return message_of(body) or json.dumps(body)


def _shorten(text: str, key: str, length: int = _LONGEST_MESSAGE) -> str:
    """One line of limited length in which the key does not stand."""
    line = " ".join(redact(text, key).split())
    return line if len(line) <= length else line[:length] + " ..."


def _advice(status: int, message: str, key_variable: str) -> str:
    words = message.lower()
    if status in (401, 403):
        return f"set the environment variable {key_variable} to a key that the server accepts"
    if status == 404:
        return "check llm.url (it usually ends in /v1) and that llm.model is a name the server knows"
    if status == 413 or "context" in words or "too long" in words or "max_new_tokens" in words:
        return "lower prompt.max_tokens or generate.max_new_tokens, or serve the model with a longer context"
    if 300 <= status < 400:
        return "redirects are not followed: set llm.url to the server's own address"
    return "check llm.model and what this server supports"


class Reply(NamedTuple):
    """What a server answered; `cut` where that was longer than what is read. `codings`: compressions inside
    one another; of more than one nothing is read, for a few kilobytes can take minutes."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes
    cut: bool
    codings: int

    @property
    def words(self) -> str:
        """The content as an error has it."""
        return self.content[:LARGEST_ERROR].decode("utf-8", "replace")


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all requests, in a thread of its own: it ends one in a look-up, in headers or in a
    body."""
    with _starting:
        return _started()


@functools.cache
def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="pbr_jax.http", daemon=True).start()
    return loop


async def _body(response: "httpx2.Response", limit: int) -> bytes:
    """The body, or somewhat more than `limit` bytes of it."""
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            body += part
            if len(body) > limit:
                break
    return bytes(body)


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
