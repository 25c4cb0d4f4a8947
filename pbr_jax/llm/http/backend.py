"""The frozen language model on a server that speaks OpenAI's protocol: vLLM, SGLang, llama.cpp, TGI, OpenAI.

Texts come from `/chat/completions` (messages) and `/completions` (plain text). Log-probabilities of a
given answer are not part of that protocol; `llm.log_probs` names one of `requests.DIALECTS`.
"""

import functools
import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack

from pbr_jax import options as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm import usage
from pbr_jax.llm.engine.local import check_pairs, groups, too_long
from pbr_jax.llm.http.client import Client, Place, Refused
from pbr_jax.llm.http.replies import UNCOUNTED, check_read, text_of
from pbr_jax.llm.http.requests import DIALECTS, Dialect, Manner
from pbr_jax.llm.protocol import (
    BadAnswer,
    Progress,
    Prompt,
    Prompts,
    Sampling,
    Score,
    TooLong,
    Unanswered,
    check_prompt,
    occurrences,
)
from pbr_jax.llm.stop_strings import cut
from pbr_jax.llm.tokens import chat
from pbr_jax.llm.tokens.control_tokens import escape_control_tokens
from pbr_jax.llm.tokens.templates import without_system
from pbr_jax.models import pretrained

Value = TypeVar("Value")
_Post = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]
"""(address, what makes the request) -> the server's answer"""

_VERSION = 5  # of what is asked; raise it when the same server would be asked for other texts
_BYTES_PER_TOKEN = 4  # of English text, about: the estimate where no tokenizer is given
_HOPELESS = 10  # bad answers and no other: nothing more is asked


class HTTPLLM:
    """A model on a server. Creating one opens no connection and reads no file.

    Without `llm.tokenizer`, a token is estimated as four bytes of UTF-8, rounded up.
    """

    def __init__(
        self, config: schema.LLM, *, pause: Callable[[threading.Event, float], object] = threading.Event.wait
    ):
        """`pause` is how a failed request waits for its next try; see `client.Client`."""
        self._config = config
        path = config.tokenizer
        self._tokenizer = pretrained.fingerprint(pretrained.locate(path)) if path else "estimate"
        self._place = Place.of(config.url)
        self._manner = Manner(config)
        # SGLang answers any name in `model` with the base model
        self._lora = {"lora_path": config.adapter} if config.adapter and config.log_probs == "sglang" else {}
        self._spending, self._asking_system = threading.Lock(), threading.Lock()
        self._knows_system = False  # whether it is known what the server does with system turns
        self._client = Client(
            key_variable=config.key_variable,
            headers_variable=config.headers_variable,
            concurrency=config.concurrency,
            timeout=config.timeout,
            retries=config.retries,
            pause=pause,
        )

    @property
    def _name(self) -> str:
        """What the server is asked for: an adapter is served under a name of its own."""
        return self._config.adapter or self._config.model

    @property
    def fingerprint(self) -> str:
        """Of the model's name, the tokenizer, what every request has, and this backend's version; the
        server's address is no part of it."""
        c, extra = self._config, json.dumps(self._config.extra_fields, sort_keys=True)
        parts = ["http", self._name, self._tokenizer, _VERSION, c.server, c.date, extra, *self._lora]
        if c.adapter:
            parts.append(c.model)  # servers of two models may call two adapters the same
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @functools.cached_property
    def _codec(self) -> chat.Codec | None:
        path = self._config.tokenizer
        return chat.load(pretrained.locate(path), self._config.date) if path else None

    def count(self, text: str) -> int:
        return self._codec.count(text) if self._codec else -(-len(_utf8(text)) // _BYTES_PER_TOKEN)

    def truncate(self, text: str, tokens: int) -> str:
        if self._codec:
            return self._codec.truncate(text, tokens)
        whole, end = _utf8(text), max(0, tokens) * _BYTES_PER_TOKEN
        while 0 < end < len(whole) and whole[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        return whole[:end].decode("utf-8", "surrogatepass")

    def render(self, prompt: Prompt) -> str:
        """The text that the model reads; without a tokenizer the messages, joined by blank lines."""
        if self._codec:
            return self._codec.render(prompt)
        if isinstance(prompt, str):
            return prompt
        check_prompt(prompt)
        return "\n\n".join(message["content"] for message in prompt)

    def num_tokens(self, prompt: Prompt) -> int:
        return self._codec.num_tokens(prompt) if self._codec else self.count(self.render(prompt))

    def generate(self, prompts: Prompts, sampling: Sampling, **progress: Unpack[Progress]) -> list[str]:
        """One continuation for each prompt; see `protocol.LLM.generate`.

        Equal prompts are sent once where nothing is sampled; else the n-th of them has `seed + n`. An answer
        that cannot be used (`replies`) is `Unanswered`. Raises UserError where the server cannot be reached
        or refuses every request, and BadAnswer where more than `llm.max_failed` of the answers are bad.
        """
        o = sampling
        self._config.check_beams(o.num_beams)
        options: dict[str, Any] = {"temperature": o.temperature}
        if o.temperature > 0:
            options["top_p"] = o.top_p
        elif o.num_beams > 1:
            options |= {"use_beam_search": True, "n": o.num_beams}
        if o.stop:
            options["stop"] = list(o.stop)
        numbers = occurrences(prompts) if o.temperature else [0] * len(prompts)

        def ask(place: int, post: _Post) -> str:
            seed = {"seed": o.seed + numbers[place]} if o.temperature else {}
            return self._complete(prompts[place], o, options | seed, post)

        lengths = ((self.num_tokens(prompt), o.max_new_tokens) for prompt in prompts)
        late = self._too_long(lengths, "generate.max_new_tokens")
        most = self._config.max_failed * len(prompts)
        return self._each(list(zip(map(json.dumps, prompts), numbers)), late, ask, progress, most)

    def score(self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]) -> list[Score]:
        """log p(target | prompt); see `protocol.LLM.score`. Equal pairs are sent once, empty targets never.

        Raises UserError where `llm.log_probs` or `llm.tokenizer` is not set, or the server gives other
        tokens.
        """
        check_pairs(prompts, targets)
        self._config.check_scoring("scoring answers")
        codec, dialect = self._codec, DIALECTS[self._config.log_probs]
        assert codec is not None  # the tokenizer is set
        pairs: list[tuple[tuple[int, ...], int]] = []
        for index, (prompt, target) in enumerate(zip(prompts, targets)):
            first = codec.encode(prompt)
            if not first:
                raise UserError(f"prompt {index} is empty; a model needs at least one token to continue")
            pairs.append((tuple(first + codec.encode_target(target)), len(first)))

        lengths = ((first, len(ids) - first) for ids, first in pairs)
        late = self._too_long(lengths, "the target's length")
        return self._each(pairs, late, lambda i, post: self._sum(dialect, *pairs[i], post), progress)

    def _each(
        self,
        requests: Sequence[Any],
        errors: Mapping[int, TooLong],
        ask: Callable[[int, _Post], Value],
        progress: Progress,
        most: float = 0.0,
    ) -> list[Any]:
        """The answer to every request; equal ones are sent once, by `ask` of the first one's place. Up to
        `most` bad answers are `Unanswered`. Errors of single requests are raised when all others have their
        answers.

        Those that share a long beginning are asked one after another, so that the server finds it in its
        prefix cache.
        """
        answers, on_batch = dict(progress.get("done") or {}), progress.get("on_batch")
        spent = Counter[str]()
        alike = sorted(groups(requests), key=lambda group: requests[group[0]])
        missing = ([i for i in group if i not in answers and i not in errors] for group in alike)
        wanted = [places for places in missing if places]
        bad: dict[int, BadAnswer] = {}

        def finish(job: int, answer: Value | BadAnswer) -> None:
            places = wanted[job]
            if isinstance(answer, BadAnswer):
                bad.update(dict.fromkeys(places, answer))
                return
            answers.update(dict.fromkeys(places, answer))
            if on_batch is not None:
                on_batch(places, [answer] * len(places))

        def job(first: int, stop: threading.Event) -> Value | BadAnswer:
            try:
                return ask(first, functools.partial(self._ask, spent, stop))
            except BadAnswer as error:
                if len(bad) >= _HOPELESS and not answers:
                    raise
                return error

        try:
            self._client.run([functools.partial(job, places[0]) for places in wanted], finish)
        finally:  # what cannot be used was paid for too
            usage.count(spent + Counter({"server_unusable": len(bad)} if bad else {}))
        if unanswered := [errors[index] for index in errors if index not in answers]:
            raise unanswered[0]
        if len(bad) > most:
            raise _too_many(bad, len(requests), self._config.max_failed if most else None)
        return [answers[i] if i in answers else Unanswered(bad[i].reason) for i in range(len(requests))]

    def _complete(self, prompt: Prompt, sampling: Sampling, options: dict[str, Any], post: _Post) -> str:
        """The answer, cut before a stop string here too: not every server knows them."""
        is_text = isinstance(prompt, str)
        address = self._place.at("/completions" if is_text else "/chat/completions")
        text = escape_control_tokens(prompt, self._codec)
        given = {"model": self._name, **self._lora, ("prompt" if is_text else "messages"): text}
        limit = sampling.max_new_tokens
        merged = False

        def make() -> dict[str, Any]:
            nonlocal merged
            merged = self._manner.merges_system
            return self._manner.asking(given, options, limit)

        answer = post(address, make)
        if not is_text and not merged and self._leaves_out_system(prompt, text, answer, address, post):
            answer = post(address, make)
        with _of(address):
            if self._config.check_prompts:
                check_read(answer, self.num_tokens(prompt), exact=self._codec is not None)
            text = text_of(
                answer, is_text=is_text, limit=limit, beams=options.get("n", 1),
                count=self._codec.count if self._codec else None, may_be_empty=bool(sampling.stop),
            )  # fmt: skip
        return cut(text, sampling.stop)

    def _leaves_out_system(
        self, prompt: Prompt, messages: Any, answer: Mapping[str, Any], address: str, post: _Post
    ) -> bool:
        """Whether the server leaves out system turns, which are sent in the user's from then on.

        It is found out once: by the chat template of `llm.tokenizer`, or where the server counts fewer tokens
        than were sent, by its counts for a short prompt with the system turn and without.
        """
        merged = without_system(messages)
        if merged == list(messages):
            return False

        def read(short: list[dict[str, str]]) -> int | None:
            given = {"model": self._name, **self._lora, "messages": short}
            asked = functools.partial(self._manner.asking, given, {"temperature": 0.0}, 1)
            return usage.usage_of(post(address, asked)).prompt

        with self._asking_system:
            if self._knows_system or self._manner.merges_system:
                return self._manner.merges_system
            long = usage.usage_of(answer).prompt or 0
            if self._codec is not None:
                written, joined = map(self._codec.render, (messages, merged))
                left_out = self._codec.template is not None and written == joined
            elif self._config.check_prompts and UNCOUNTED <= long < self.num_tokens(prompt):
                user = {"role": "user", "content": "Hello"}
                left_out = read([messages[0], user]) == read([user]) != long
            else:
                return False
            self._knows_system = True
            if left_out:
                self._manner.merge_system("reads")
            return left_out

    def _sum(self, dialect: Dialect, ids: tuple[int, ...], first: int, post: _Post) -> Score:
        if first == len(ids):
            return Score(0.0, 0)
        address = self._place.at(dialect.path, beside_v1=dialect.beside_v1)

        def body() -> dict[str, Any]:
            body = dialect.body(self._name, ids, first, self._manner.neutral)
            return self._manner.whole({**body, **self._lora})

        answer = post(address, body)
        with _of(address):
            log_probs = dialect.read(answer, ids, first)
        return Score(math.fsum(log_probs), len(log_probs))

    def _ask(
        self, spent: Counter[str], stop: threading.Event, address: str, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The answer to what `make` makes; asked otherwise where a refusal says how, which is remembered."""
        while True:
            body = make()
            try:
                answer = self._client.post(address, body, stop)
            except Refused as error:
                self._manner.learn(error, body)
                if stop.is_set() or make() == body:
                    raise error.of_answer() or error from None
            else:
                with self._spending:
                    spent.update(usage.usage_of(answer).counts)
                return answer

    def _too_long(self, lengths: Iterable[tuple[int, int]], name: str) -> dict[int, TooLong]:
        """Prompts that are over `llm.context` with what follows; without one nothing is counted here."""
        context = self._config.context
        if context is None:
            return {}
        errors = (too_long(i, *sizes, context, name, cuts=False) for i, sizes in enumerate(lengths))
        return {error.index: error for error in errors if error is not None}


def _too_many(bad: Mapping[int, BadAnswer], count: int, share: float | None) -> BadAnswer:
    """The first bad answer's error, with how many there are of so many, and the share that is allowed."""
    first, places = next(iter(bad.values())), sorted(bad)
    allowed = "" if share is None else f", over llm.max_failed {share:g}"
    line = f"{first}" if count == 1 else f"{first}; {len(bad)} of {count} answers cannot be used{allowed}"
    return BadAnswer(first.reason, line, places)


@contextmanager
def _of(address: str) -> Iterator[None]:
    """Errors of answers say which address gave them."""
    try:
        yield
    except BadAnswer as error:
        raise BadAnswer(error.reason, f"{address}: {error}") from None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # half a character, as JSON files may hold
