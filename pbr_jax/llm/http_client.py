"""Requests to a language model's server: several at once, tried again where the fault may pass, one secret.

The key is read from the environment for every request and goes into the `Authorization` header, nowhere
else: redirects are not followed, a server's words that quote it are blotted out, and no exception that
leaves this module holds a request.
"""

import functools
import itertools
import json
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pbr_jax.models.pretrained import one_line
from pbr_jax.types import UserError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
Job = Callable[[threading.Event], T]
"""One request and the reading of its answer. The event is set once the call has failed elsewhere."""

_PASSING = frozenset({408, 409, 425, 429})  # and 5xx: the same request may succeed later
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds
_LONGEST_RETRY_AFTER = 60.0  # seconds; a server that asks for more is asked again after this much
_LONGEST_MESSAGE = 300  # characters of a server's words in an error


class Refused(UserError):
    """The server understood and will not: a status that trying again does not change."""

    def __init__(self, line: str, status: int, message: str):
        super().__init__(line)
        self.status = status
        self.message = message  # the server's words


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
        """`timeout` is in seconds, for connecting and for each silence of the server. `pause(stop, seconds)`
        waits before a further try, and no longer than until `stop` is set."""
        self._key_variable = key_variable
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._pause = pause
        self._http = _open(timeout, concurrency)
        weakref.finalize(self, self._http.close)

    def run(self, jobs: Iterable[Job[T]], finish: Callable[[int, T], None]) -> None:
        """Runs the jobs, at most `concurrency` at once, and tells `finish` each one's place and result.

        `finish` runs in the calling thread, as soon as a result is there. After a failure no further job
        is started; those under way are waited for and told to `finish`, then the failure is raised.
        """
        stop = threading.Event()
        failure: BaseException | None = None
        waiting = enumerate(jobs)
        with ThreadPoolExecutor(self._concurrency) as pool:
            try:
                start = functools.partial(_submit, pool, waiting, stop)
                running = start(self._concurrency)
                while running:
                    finished, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in finished:
                        place, error = running.pop(future), future.exception()
                        if error is not None:
                            failure = failure or error
                            stop.set()
                            continue
                        if failure is None:
                            running |= start(1)
                        finish(place, future.result())
            finally:
                stop.set()
        if failure is not None:
            raise failure

    def post(self, address: str, body: Mapping[str, Any], stop: threading.Event) -> dict[str, Any]:
        """The JSON object that the server answers.

        Timeouts, cut connections, answers that are not JSON, and statuses 408, 409, 425, 429 and 5xx are
        tried again, `retries` times: after a random wait of up to 1, 2, 4, ... 30 seconds ("full jitter",
        https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter), or after what the
        server's Retry-After says, at most a minute. Once `stop` is set nothing is tried again.

        Raises:
          Refused: any other status that is not a success.
          UserError: the last try failed too, or the key cannot be sent.
        """
        content = json.dumps(body).encode()
        tries = 0
        while True:
            tries += 1
            outcome = self._try(address, content)
            if isinstance(outcome, dict):
                return outcome
            if isinstance(outcome, Refused):
                raise outcome  # here, not where the key stands in a frame that a traceback may print
            if tries > self._retries or stop.is_set():
                break
            self._pause(stop, backoff(tries, outcome.after))
        times = "1 try" if tries == 1 else f"{tries} tries"
        raise UserError(f"{address}: {outcome.what}, after {times}; {outcome.advice}")

    def _try(self, address: str, content: bytes) -> dict[str, Any] | _Fault | Refused:
        import httpx2

        key = read_key(self._key_variable)
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            response = self._http.post(address, content=content, headers=headers)
        except httpx2.TimeoutException:
            return _Fault(
                f"no answer within {self._timeout:g} s", "raise llm.timeout or lower llm.concurrency"
            )
        except httpx2.RequestError as error:
            reason = _shorten(one_line(error), key)
            return _Fault(f"the connection failed ({reason})", "start the server, or check llm.url")
        if response.is_success:
            return _read(response, key)
        message = _shorten(server_message(response), key)
        what = f"the server answered {response.status_code} ({message})"
        if response.status_code in _PASSING or response.status_code >= 500:
            advice = "lower llm.concurrency, raise llm.retries, or see the server's log"
            return _Fault(what, advice, retry_after(response.headers.get("Retry-After")))
        advice = _advice(response.status_code, message, self._key_variable)
        return Refused(f"{address}: {what}; {advice}", response.status_code, message)


def _submit(
    pool: ThreadPoolExecutor, waiting: Iterator[tuple[int, Job[T]]], stop: threading.Event, count: int
) -> dict[Future[T], int]:
    """The next jobs under way, and their places."""
    return {pool.submit(job, stop): place for place, job in itertools.islice(waiting, count)}


def _open(timeout: float, concurrency: int) -> "httpx2.Client":
    import httpx2

    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    try:
        return httpx2.Client(
            timeout=httpx2.Timeout(timeout, pool=None), limits=limits, follow_redirects=False
        )
    except (ValueError, ImportError) as error:
        raise UserError(
            f"the proxy or certificate settings of the environment cannot be used: {one_line(error)}; "
            "see HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from None


def check_url(url: str) -> str:
    """The address without a slash at its end, if it is a scheme, a host and a path and nothing more.

    Raises:
      UserError: it is not; the message does not quote it, for it may hold a password.
    """
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and (parts.port or 1) > 0 and url.isprintable() and " " not in url
    except ValueError:
        good = False
        parts = urlsplit("")
    if not good or parts.query or parts.fragment or "@" in parts.netloc:
        raise UserError(
            "llm.url must be scheme, host and path alone, such as http://127.0.0.1:8000/v1; "
            "a key belongs in the environment variable that llm.key_variable names"
        )
    return url.rstrip("/")


def read_key(variable: str) -> str:
    """The key in an environment variable, "" where there is none.

    Raises:
      UserError: it has characters that a header cannot carry.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        del key  # nor does it stand in the traceback's frames
        raise UserError(
            f"the environment variable {variable} holds characters that no key has (a line break, an "
            "accent); set it again"
        )
    return key


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


def _read(response: "httpx2.Response", key: str) -> dict[str, Any] | _Fault:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        return answer
    begin = _shorten(response.text, key, 60)
    return _Fault(
        f"the answer is not a JSON object (it begins {begin!r})",
        "check that llm.url is where the API starts, or see the server's log",
    )


def server_message(response: "httpx2.Response") -> str:
    """What the server says about an error, wherever it puts it."""
    if response.is_redirect:
        return f"a redirect to {response.headers.get('Location', 'nowhere')}"
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return response.text or response.reason_phrase
    return message_of(body) or json.dumps(body)


def message_of(body: Any) -> str | None:
    """The message of an error as OpenAI (`error.message`), vLLM (`message`) or FastAPI (`detail`) tell it."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            inner = body[name]
            return message_of(inner) or (inner if isinstance(inner, str) else json.dumps(inner))
    return None


def _shorten(text: str, key: str, length: int = _LONGEST_MESSAGE) -> str:
    """One line of limited length in which the key does not stand."""
    if key:
        text = text.replace(key, "[key]")
    line = " ".join(text.split())
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
