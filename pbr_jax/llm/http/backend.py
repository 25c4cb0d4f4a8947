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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from pbr_jax import options as schema
from pbr_jax.base.types import UserError
from pbr_jax.llm import usage
from pbr_jax.llm.engine.local import check_context, check_pairs, groups
from pbr_jax.llm.http.client import Client, Refused, check_url
from pbr_jax.llm.http.replies import text_of
from pbr_jax.llm.http.requests import ADVICE, DIALECTS, Dialect, Manner
from pbr_jax.llm.protocol import (
    Progress,
    Prompt,
    Sampling,
    Score,
    TooLong,
    check_prompt,
    occurrences,
)
from pbr_jax.llm.stop_strings import cut
from pbr_jax.llm.tokens import chat
from pbr_jax.llm.tokens.control_tokens import escape_control_tokens
from pbr_jax.models import pretrained

Value = TypeVar("Value")
_Post = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]
"""(address, what makes the request) -> the server's answer"""

_VERSION = 5  # of what is asked; raise it when the same server would be asked for other texts
_BYTES_PER_TOKEN = 4  # of English text, about: the estimate where no tokenizer is given


class HTTPLLM:
    """A model on a server. Creating one opens no connection and reads no file.

    Without `llm.tokenizer`, a token is estimated as four bytes of UTF-8, rounded up.
    """

    def __init__(
        self,
        config: schema.LLM,
        *,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ):
        """`pause` is how a failed request waits for its next try; see `client.Client`."""
        self._config = config
        path = config.tokenizer
        self._tokenizer = pretrained.fingerprint(pretrained.locate(path)) if path else "estimate"
        self._url = check_url(config.url)
        self._manner = Manner(config)
        # SGLang answers any name in `model` with the base model
        self._lora = {"lora_path": config.adapter} if config.adapter and config.log_probs == "sglang" else {}
        self._spending = threading.Lock()
        self._client = Client(
            key_variable=config.key_variable,
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

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, **progress: Unpack[Progress]
    ) -> list[str]:
        """One continuation for each prompt; see `protocol.LLM.generate`.

        Equal prompts are sent once where nothing is sampled; else the n-th of them has `seed + n`. A
        refusal's text is an answer. Raises UserError where the server cannot be reached, refuses, or
        answers something else than was asked for (`replies.text_of`).
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
        return self._each(list(zip(map(json.dumps, prompts), numbers)), late, ask, progress)

    def score(
        self, prompts: Sequence[Prompt], targets: Sequence[str], **progress: Unpack[Progress]
    ) -> list[Score]:
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
    ) -> list[Value]:
        """The answer to every request; equal ones are sent once, by `ask` of the first one's place. Raises
        the first of `errors` that has no answer, when all others have one.

        Those that share a long beginning are asked one after another, so that the server finds it in its
        prefix cache.
        """
        answers, on_batch = dict(progress.get("done") or {}), progress.get("on_batch")
        spent = Counter[str]()
        missing = [
            (group[0], [place for place in group if place not in answers and place not in errors])
            for group in sorted(groups(requests), key=lambda group: requests[group[0]])
        ]
        wanted = [(first, places) for first, places in missing if places]

        def finish(job: int, answer: Value) -> None:
            places = wanted[job][1]
            answers.update(dict.fromkeys(places, answer))
            if on_batch is not None:
                on_batch(places, [answer] * len(places))

        def job(first: int, stop: threading.Event) -> Value:
            return ask(first, functools.partial(self._ask, spent, stop))

        try:
            self._client.run([functools.partial(job, first) for first, _ in wanted], finish)
        finally:  # what cannot be used was paid for too
            usage.count(spent)
        if unanswered := [errors[index] for index in errors if index not in answers]:
            raise unanswered[0]
        return [answers[index] for index in range(len(requests))]

    def _complete(self, prompt: Prompt, sampling: Sampling, options: dict[str, Any], post: _Post) -> str:
        """The answer, cut before a stop string here too: not every server knows them."""
        is_text = isinstance(prompt, str)
        address = self._url + ("/completions" if is_text else "/chat/completions")
        text = escape_control_tokens(prompt, self._codec)
        given = {"model": self._name, **self._lora, ("prompt" if is_text else "messages"): text}
        limit = sampling.max_new_tokens
        answer = post(address, lambda: self._manner.asking(given, options, limit))
        text = text_of(
            answer, address, is_text=is_text, limit=limit, beams=options.get("n", 1),
            count=self._codec.count if self._codec else None, may_be_empty=bool(sampling.stop),
        )  # fmt: skip
        return cut(text, sampling.stop)

    def _sum(self, dialect: Dialect, ids: tuple[int, ...], first: int, post: _Post) -> Score:
        if first == len(ids):
            return Score(0.0, 0)
        root = self._url.removesuffix("/v1") if dialect.beside_v1 else self._url
        address = root + dialect.path

        def body() -> dict[str, Any]:
            body = dialect.body(self._name, ids, first, self._manner.neutral)
            return self._manner.whole({**body, **self._lora})

        log_probs = dialect.read(post(address, body), ids, first, address)
        if wrong := [value for value in log_probs if not _is_log_prob(value)]:
            raise UserError(
                f"{address}: a token's log-probability is {wrong[0]!r:.40}, want a number up to 0; {ADVICE}"
            )
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
                    raise
            else:
                with self._spending:
                    spent.update(usage.usage_of(answer).counts)
                return answer

    def _too_long(self, lengths: Iterable[tuple[int, int]], name: str) -> dict[int, TooLong]:
        """Prompts that are over `llm.context` with what follows; without one nothing is counted here."""
        late: dict[int, TooLong] = {}
        if self._config.context is None:
            return late
        for index, (length, following) in enumerate(lengths):
            try:
                check_context(index, length, following, self._config.context, name, cuts=False)
            except TooLong as error:
                late[index] = error
        return late


def _is_log_prob(value: Any) -> bool:
    """Whether it is a finite number up to 0, but for rounding; 100,000 of the least still have a sum."""
    return isinstance(value, float | int) and not isinstance(value, bool) and -1e300 <= value <= 1e-6


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # half a character, as JSON files may hold
