"""The interface of a frozen language model. Backends implement `LLM`, and callers use only `LLM`."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, runtime_checkable

from pbr_jax.base.types import UserError
from pbr_jax.llm.usage import bound

VERSION = 1
"""Of what this package computes: raised when the same model and request would give other texts or scores."""

Prompt = str | Sequence[dict[str, str]]
Prompts = Sequence[Prompt]
"""Plain text, which is continued, or chat messages (`role`, `content`), to which the template is applied."""

OnBatch = Callable[[Sequence[int], Sequence[str]], None]
"""A function that is called with positions and texts when they are finished."""

OnText = Callable[[Prompt, str], None]
"""A function that is called with a prompt and what is settled of its answer so far, every few tokens."""

_listener: ContextVar[OnText | None] = ContextVar("listener", default=None)

_NAMED = 20  # questions that an error lists

PerToken = list[float]
"""A number for each token: its log-probability, or the attention that it gets."""


class Progress(TypedDict, total=False):
    """How a call goes on from an interrupted one, and tells of its own progress.

    `done` (position -> answer) holds the finished answers of an interrupted call; the result is the same as
    without the interruption. `on_batch` is called with positions and answers when they are finished.
    """

    done: Mapping[int, Any] | None
    on_batch: Callable[[Sequence[int], Sequence[Any]], None] | None


class TooLong(UserError):
    """A prompt that, together with its answer or target, exceeds the model's context.

    It is raised after all other prompts have been answered, so that their answers are not lost.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"prompt {index} {reason}")
        self.index, self.reason = index, reason

    def of(self, name: str) -> UserError:
        """The same, with what the prompt was made for."""
        return UserError(f"the prompt of {name} {self.reason}")


class BadAnswer(UserError):
    """An answer to one prompt that cannot be used; `reason` is a word for the counts.

    `indices` are the prompts without an answer, once all other prompts have been answered.
    """

    def __init__(self, reason: str, line: str, indices: Sequence[int] = ()) -> None:
        super().__init__(line)
        self.reason, self.indices = reason, indices

    def of(self, names: Sequence[str]) -> UserError:
        """The same, with what the prompts were made for."""
        if not self.indices:
            return self
        some = [repr(names[index]) for index in self.indices[:_NAMED]]
        more = f" and {len(self.indices) - _NAMED} more" * (len(self.indices) > _NAMED)
        return UserError(f"{self}; without an answer: question {', '.join(some)}{more}")


class Unanswered(str):
    """The empty text in place of an answer that cannot be used. It is never kept in the cache."""

    reason: str

    def __new__(cls, reason: str) -> "Unanswered":
        text = super().__new__(cls)
        text.reason = reason
        return text


@contextmanager
def naming(ids: Iterable[str]) -> Iterator[None]:
    """In this block, errors of single prompts contain the ids of their questions."""
    try:
        yield
    except TooLong as error:
        raise error.of(f"question {list(ids)[error.index]!r}") from error
    except BadAnswer as error:
        raise error.of(list(ids)) from error


def listening(on_text: OnText | None) -> AbstractContextManager[OnText | None]:
    """In this block, `on_text` follows the answers that a decoder-only model in this process writes.

    It is called from several threads. It is not called for beams, for draws of equal prompts, and for models
    that can think, whose answers are known only at the end.
    """
    return bound(_listener, on_text)


def listener() -> OnText | None:
    """The function of `listening` around the caller, if there is one."""
    return _listener.get()


class Score(NamedTuple):
    """log p(target | prompt): the sum over the target's tokens in nats, and the number of tokens."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        """The log-probability per token, in nats; 0 for an empty target."""
        return self.total / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Sampling:
    """Decoding options.

    `max_new_tokens` is the maximum length of an answer. `temperature` divides the logits; 0 means greedy
    decoding. `top_p` samples from the most probable tokens whose total probability reaches this value. A
    value of `num_beams` above 1 means beam search without temperature; the best beam is returned. An answer
    ends before the first occurrence of a text in `stop` (`stop_strings.cut`). Raises UserError for invalid
    values.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    num_beams: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature == 0 or 1e-6 <= self.temperature < math.inf,
             "0 (greedy) or a number from 1e-6 on"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("num_beams", self.num_beams >= 1, "at least 1"),
            ("num_beams", self.num_beams == 1 or not self.temperature, "1 with a temperature"),
            ("stop", isinstance(self.stop, tuple) and all(isinstance(one, str) and one for one in self.stop),
             "a tuple of texts, none of them empty"),
        ):  # fmt: skip
            if not fits:
                raise UserError(f"generate.{name} is {getattr(self, name)!r:.60}; it must be {wanted}")


@runtime_checkable
class LLM(Protocol):
    """A frozen language model."""

    @property
    def fingerprint(self) -> str:
        """Identifies weights, tokenizer, template and number format. It is part of every cache key."""
        ...

    def generate(self, prompts: Prompts, sampling: Sampling, **progress: Unpack[Progress]) -> list[str]:
        """Generates a continuation of each prompt, without stop tokens and special tokens.

        Samples depend on the seed, the prompt and the number of equal prompts before it in the list, but not
        on other prompts or on batches. Raises TooLong if a prompt exceeds the context, after `on_batch` has
        received all other answers. An answer of a server that cannot be used is `Unanswered`; too many of
        them (`llm.max_failed`) are a `BadAnswer`, raised after all other answers too.
        """
        ...

    def score(self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]) -> list[Score]:
        """Computes log p(target | prompt) for each pair. Prompt and target are tokenised separately.

        If a target should begin with a space, it must contain the space, unless the chat template writes one
        before every answer. No end token is added.
        """
        ...

    def count(self, text: str) -> int:
        """The number of tokens of a text, without special tokens."""
        ...

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix of the text that ends at a token boundary and has at most this many tokens."""
        ...

    def render(self, prompt: Prompt) -> str:
        """The text that the model reads, with the chat template applied and the answer's turn opened."""
        ...

    def num_tokens(self, prompt: Prompt) -> int:
        """The number of tokens that the model reads for this prompt, with template and special tokens."""
        ...


class Mixture(NamedTuple):
    """One answer from several prompts: at every token their distributions are mixed by `weights`.

    `begun`: tokens of the answer that are there already.
    """

    prompts: tuple[Prompt, ...]
    weights: tuple[float, ...] = (1.0,)
    begun: tuple[int, ...] = ()


class Watch(NamedTuple):
    """Messages, and spans of characters of the last one: how much attention `spans` get from `query`, and
    from all that follows it where `to_end`."""

    messages: list[dict[str, str]]
    spans: tuple[tuple[int, int], ...]
    query: tuple[int, int]
    to_end: bool = False


@runtime_checkable
class TokenLevel(LLM, Protocol):
    """A model that can be led token by token, and looked into: a decoder-only model in this process. For
    others the options raise an error before any work (`options.LLM.check_scoring`, `check_tokens`)."""

    def token_scores(
        self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]
    ) -> list[PerToken]:
        """log p of every token of each target, in nats; their sums are `score`'s totals."""
        ...

    def extend(
        self, mixtures: Sequence[Mixture], sampling: Sampling, **progress: Unpack[Progress]
    ) -> list[list[int]]:
        """Further tokens of each answer, the last one a stop token where the answer ends."""
        ...

    def attention(self, watches: Sequence[Watch], **progress: Unpack[Progress]) -> list[list[PerToken]]:
        """For every span the attention that each of its tokens gets: summed over layers and heads, the mean
        over the tokens that ask."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's tokens, up to the first stop token."""
        ...

    def beginning(self, target: str, tokens: int) -> str:
        """The text of a target's first tokens, as `token_scores` counts them."""
        ...

    def ended(self, tokens: Sequence[int]) -> bool:
        """Whether an answer's last token ends it."""
        ...


def occurrences(prompts: Prompts) -> list[int]:
    """For each prompt, the number of equal prompts before it, which selects the draw for repeated prompts."""
    seen: Counter[str] = Counter()
    numbers = []
    for name in (json.dumps(prompt, sort_keys=True) for prompt in prompts):
        numbers.append(seen[name])
        seen[name] += 1
    return numbers


def check_prompt(prompt: Any) -> None:
    """Raises UserError if this is not a `Prompt`, or contains text that UTF-8 cannot encode."""
    if isinstance(prompt, str):
        check_text(prompt, "the prompt")
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise UserError(f"the prompt is {prompt!r:.40}, want a text or a list of messages; correct it")
    for place, message in enumerate(prompt):
        if not isinstance(message, Mapping):
            raise UserError(
                f"message {place} of the prompt is {message!r:.40}, want an object with role and content; "
                "give a plain prompt as a text of its own"
            )
        for name in (*message, "role", "content"):
            check_text(name, f"the name of a field of message {place}")
            check_text(message.get(name), f"field {name!r} of message {place}")


def brief(value: Any) -> str:
    """A value as Python writes it, cut to 40 characters; its type where Python refuses to write it."""
    try:
        return f"{value!r:.40}"
    except Exception:  # such as a number of more than 4300 digits
        return type(value).__name__


def check_text(text: Any, what: str) -> None:
    """Raises UserError if this is not a text, or contains an unpaired surrogate."""
    if not isinstance(text, str):
        raise UserError(f"{what} is {brief(text)}, want a text; give an empty one where nothing is said")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}, character {error.start}"
        raise UserError(
            f"{what} holds half of a surrogate pair ({half}), want whole characters; correct the text"
        ) from None
