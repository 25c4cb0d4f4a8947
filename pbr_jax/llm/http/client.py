"""Requests to a language model's server: several at once, tried again where the fault may pass, one secret.

The key and further headers are read from the environment for every request and stand in headers alone.
Redirects are not followed. Where a server repeats one of them, errors have "[key]" in its place, and an
answer is refused (docs/concepts/security.md).
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pbr_jax.base.types import UserError
from pbr_jax.llm.http.replies import FILTERS, error_status, message_of
from pbr_jax.llm.protocol import BadAnswer
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

_PASSING = frozenset({408, 409, 425, 429})  # and 5xx: the same request may succeed later
_SPENT = ("insufficient_quota", "billing_hard_limit_reached")  # a 429 that no waiting mends
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds
_LONGEST_RETRY_AFTER = 60.0  # seconds; a server that asks for more is asked again after this much
_LONGEST_MESSAGE = 300  # characters of a server's words in an error
_SHORTEST = 8  # characters of a secret; a shorter key ("EMPTY", "none") may stand in any answer
_OWN_FAULT = frozenset({200, 400, 403, 413, 422, 451})  # of a request, where another may succeed
_FILTER = re.compile(r"content.?(filter|management|policy)|moderation|flagged|responsible.?ai", re.IGNORECASE)
_QUERY = re.compile("(api[-_]?)?version|deployment|project|region|location|provider")
_LAST_WAIT = 5.0  # seconds after an interruption in which answers that are under way may still come


class Refused(UserError):
    """The server understood and will not: a status that trying again does not change."""

    def __init__(self, line: str, status: int, words: str):
        super().__init__(line)
        self.status = status
        self.words = words  # the whole of what the server said, without secrets

    def of_answer(self) -> BadAnswer | None:
        """The same as an error of one prompt, where the server may answer others."""
        withheld = _FILTER.search(self.words) is not None
        if self.status not in _OWN_FAULT or (self.status == 403 and not withheld):
            return None
        reason = "filter" if withheld else "too_long" if _is_long(self.status, self.words) else "refused"
        return BadAnswer(reason, str(self))


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
        headers_variable: str = "",
        concurrency: int,
        timeout: float,
        retries: int,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ):
        """`timeout` is in seconds, for one try from connecting to the answer's last byte. `pause(stop,
        seconds)` waits before a further try, and no longer than until `stop` is set."""
        self._key_variable, self._headers_variable = key_variable, headers_variable
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._pause = pause
        self._http, self._loop = _open(concurrency), _loop()
        self._under_way: set[Future[_Reply]] = set()

        def close(http: "httpx2.AsyncClient", loop: asyncio.AbstractEventLoop) -> None:
            asyncio.run_coroutine_threadsafe(http.aclose(), loop)

        weakref.finalize(self, close, self._http, self._loop)

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
        tries = 1
        while not isinstance(outcome := self._try(address, content), dict):
            if tries <= self._retries:
                self._pause(stop, backoff(tries, outcome.after))
            if tries > self._retries or stop.is_set():
                times = "1 try" if tries == 1 else f"{tries} tries"
                raise UserError(f"{address}: {outcome.what}, after {times}; {outcome.advice}")
            tries += 1
        return outcome

    def _try(self, address: str, content: bytes) -> dict[str, Any] | _Fault:
        import httpx2

        key, more = read_key(self._key_variable), read_headers(self._headers_variable)
        own = {"api-key": key} if is_azure(address) else {"authorization": f"Bearer {key}"}
        headers = {"content-type": "application/json", **(own if key else {}), **more}
        secrets = [key, *(word for word in " ".join(more.values()).split() if len(word) >= _SHORTEST)]
        try:
            return self._read(address, self._sent(address, content, headers), secrets)
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
            reason = _shorten(os.strerror(number) if number and number > 0 else one_line(inner), secrets)
            closed = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
            if isinstance(inner, ssl.SSLError) and not isinstance(inner, closed):
                advice = "check llm.url (http or https) and SSL_CERT_FILE, the certificates that are trusted"
                raise UserError(f"{address}: no secure connection ({reason}); {advice}") from None
            return _Fault(f"the connection failed ({reason})", "start the server, or check llm.url")

    def _read(self, address: str, reply: "_Reply", secrets: Sequence[str]) -> dict[str, Any] | _Fault:
        if not 200 <= reply.status < 300:
            return _refusal(address, reply, reply.status, secrets, self._key_variable)
        try:
            answer = json.loads(reply.content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            begin = _shorten(reply.words, secrets, 60)
            return _Fault(
                f"the answer is not a JSON object (it begins {begin!r})",
                "check that llm.url is where the API starts, or see the server's log",
            )
        text = json.dumps(answer)
        if redact(text, *(secret for secret in secrets if len(secret) >= _SHORTEST)) != text:
            raise UserError(
                f"{address}: the answer repeats the key of {self._key_variable}, so nothing of it is kept; "
                "check llm.url, and replace the key"
            )
        status = error_status(answer)
        return _refusal(address, reply, status, secrets, self._key_variable) if status else answer

    def _sent(self, address: str, content: bytes, headers: Mapping[str, str]) -> "_Reply":
        """What the server answers. Raises TimeoutError, CancelledError after an interruption, or
        httpx2.RequestError where the connection failed."""

        async def send() -> _Reply:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream("POST", address, content=content, headers=headers) as response,
            ):
                listed = response.headers.get_list("content-encoding", split_commas=True)
                codings = sum(name.strip().lower() not in ("", "identity") for name in listed)
                if codings > 1:  # a few kilobytes can take minutes
                    raise UserError(
                        f"{address}: the answer is compressed {codings} times over, want once at most; "
                        "check llm.url, and what stands before the server"
                    )
                limit, body = LARGEST if response.is_success else LARGEST_ERROR, bytearray()
                async with contextlib.aclosing(response.aiter_bytes()) as parts:
                    async for part in parts:
                        body += part
                        if len(body) > limit:
                            break
                if response.is_success and len(body) > limit:
                    most = f"{LARGEST >> 20} MiB, which no answer is"
                    raise UserError(f"{address}: the answer is over {most}; check llm.url")
                return _Reply(response.status_code, response.reason_phrase, response.headers, bytes(body))

        future = asyncio.run_coroutine_threadsafe(send(), self._loop)
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


def _refusal(address: str, reply: "_Reply", status: int, secrets: Sequence[str], key_variable: str) -> _Fault:
    """The fault of a status that is no success. Raises Refused where trying again changes nothing."""
    words = reply.words
    whole = f"{_server_message(reply)}\n{words}"
    message = _shorten(_server_message(reply), secrets)
    answered = str(reply.status) if reply.status >= 300 else f"{reply.status} with an error"
    what = f"the server answered {answered} ({message})"
    spent = status == 402 or (status == 429 and any(code in words for code in _SPENT))
    if not spent and (status in _PASSING or status >= 500):
        advice = "lower llm.concurrency, raise llm.retries, or see the server's log"
        return _Fault(what, advice, retry_after(reply.headers.get("Retry-After")))
    advice = "the account's quota is spent: add to it" if spent else _advice(status, whole, key_variable)
    raise Refused(f"{address}: {what}; {advice}", status, redact(whole, *secrets))


def read_key(variable: str) -> str:
    """The key in an environment variable, "" where there is none; UserError where no header can carry it."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        raise UserError(
            f"the environment variable {variable} holds characters that no key has (a line break, an "
            "accent); set it again"
        )
    return key


def read_headers(variable: str) -> dict[str, str]:
    """The headers in an environment variable, a JSON object of texts; none where it is not set. Raises
    UserError: it holds something else, which the message does not quote."""
    try:
        headers = json.loads((variable and os.environ.get(variable)) or "{}")
    except (ValueError, RecursionError):
        headers = None
    if not isinstance(headers, dict) or not all(map(_is_header, headers, headers.values())):
        raise UserError(
            f"the environment variable {variable} holds no headers, want a JSON object of texts, such as "
            '{"X-Team": "search"}'
        )
    return {name.lower(): value for name, value in headers.items()}


def _is_header(name: str, value: object) -> bool:
    known = re.fullmatch(r"[\w-]+", name, re.ASCII) and isinstance(value, str)
    return bool(known and re.fullmatch("[ -~]*", str(value)))


def redact(text: str, *secrets: str) -> str:
    """The text with "[key]" in the place of each secret, as it is and as JSON has it; the longest first, for
    one may begin another."""
    spelled = {*secrets, *(json.dumps(secret)[1:-1] for secret in secrets)} - {""}
    for secret in sorted(spelled, key=len, reverse=True):
        text = text.replace(secret, "[key]")
    return text


class Place(NamedTuple):
    """Where a server's API starts; `query` stands behind the path of every request."""

    base: str
    query: str = ""

    @classmethod
    def of(cls, url: str) -> "Place":
        """The place that an address names, which may be that of the API or of its chat completions.

        Raises UserError: it is no address, or may hold a secret; the message does not quote it."""
        import httpx2

        try:
            httpx2.URL(url)  # also knows what no host is called
            parts = urlsplit(url)
            good = bool(parts.hostname) and (parts.port or 1) > 0 and url.isprintable() and " " not in url
            names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)]
        except (ValueError, httpx2.InvalidURL):
            good, parts, names = False, urlsplit(""), []
        if not good or parts.fragment or "@" in parts.netloc or not all(map(_QUERY.fullmatch, names)):
            raise UserError(
                "llm.url must be scheme, host and path, such as http://127.0.0.1:8000/v1, with at most a "
                "query such as ?api-version=; a key belongs in the environment variable that "
                "llm.key_variable names, headers in that of llm.headers_variable"
            )
        path = re.sub("(/chat)?/completions$", "", parts.path.rstrip("/"))
        return cls(f"{parts.scheme}://{parts.netloc}{path}", f"?{parts.query}" * bool(parts.query))

    def at(self, path: str, *, beside_v1: bool = False) -> str:
        """The address of a path of the API, or of one that stands `beside_v1`."""
        return (self.base.removesuffix("/v1") if beside_v1 else self.base) + path + self.query


def is_azure(address: str) -> bool:
    """Whether a server takes the key as Azure does, in the header `api-key`."""
    parts = urlsplit(address)
    return (parts.hostname or "").endswith(".azure.com") or "api-version=" in parts.query


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


def _server_message(reply: "_Reply") -> str:
    """What the server says about an error, wherever it puts it."""
    if reply.status in (301, 302, 303, 307, 308):
        return f"a redirect to {reply.headers.get('Location', 'nowhere')}"
    try:
        body = json.loads(reply.words)
    except (ValueError, RecursionError):
        return reply.words or reply.reason
    return message_of(body) or json.dumps(body)


def _shorten(text: str, secrets: Sequence[str], length: int = _LONGEST_MESSAGE) -> str:
    """One line of limited length in which no secret stands."""
    line = " ".join(redact(text, *secrets).split())
    return line if len(line) <= length else line[:length] + " ..."


def _is_long(status: int, words: str) -> bool:
    """Whether a refusal is of a prompt that is too long."""
    return status == 413 or re.search("context|too long|max_new_tokens", words, re.IGNORECASE) is not None


def _advice(status: int, words: str, key_variable: str) -> str:
    if _FILTER.search(words):
        return FILTERS
    if status in (401, 403):
        return f"set the environment variable {key_variable} to a key that the server accepts"
    if status == 404:
        return "check llm.url (it usually ends in /v1) and that llm.model is a name the server knows"
    if _is_long(status, words):
        return "lower prompt.max_tokens or generate.max_new_tokens, or serve the model with a longer context"
    if 300 <= status < 400:
        return "redirects are not followed: set llm.url to the server's own address"
    return "check llm.model and what this server supports"


class _Reply(NamedTuple):
    """What a server answered; of an error not more than its first bytes."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def words(self) -> str:
        """The content as an error has it."""
        return self.content[:LARGEST_ERROR].decode("utf-8", "replace")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of requests, in its own thread: it ends one in a look-up, in headers or in a body."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="pbr_jax.http", daemon=True).start()
    return loop


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
