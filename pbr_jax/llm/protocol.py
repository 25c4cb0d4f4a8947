"""What the toolkit asks of a frozen language model. Backends implement `LLM`; callers know nothing else."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pbr_jax.types import UserError

VERSION = 1
"""Of what this package computes: raised when the same model and request would give other texts or scores."""

Prompt = str | Sequence[dict[str, str]]
"""Plain text, continued as it stands; or chat messages (`role`, `content`), put through the template."""

OnBatch = Callable[[Sequence[int], Sequence[str]], None]
"""Called with positions and texts as soon as they are finished."""

OnScores = Callable[[Sequence[int], Sequence["Score"]], None]
"""The same for scores."""


class TooLong(UserError):
    """A prompt that, with what follows it, is over the model's context.

    Raised when all others have been answered, so that one does not cost the work of thousands.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"prompt {index} {reason}")
        self.index, self.reason = index, reason

    def of(self, name: str) -> UserError:
        """The same, with what the prompt was made for."""
        return UserError(f"the prompt of {name} {self.reason}")


@contextmanager
def naming(ids: Iterable[str]) -> Iterator[None]:
    """Errors of prompts that are too long name the id of their question."""
    try:
        yield
    except TooLong as error:
        raise error.of(f"question {list(ids)[error.index]!r}") from error


class Score(NamedTuple):
    """log p(target | prompt): the sum over the target's tokens, in nats, and how many there are."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        """Log-probability per token; 0 for an empty target."""
        return self.total / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Sampling:
    """How answers are decoded.

    `max_new_tokens` is the most tokens of an answer. `temperature` divides the logits, and 0 takes the most
    probable token. `top_p` samples from the most probable tokens that together reach this mass. More than
    one of `num_beams` searches with so many beams and returns the best, without a temperature. An answer ends
    before the first of the texts in `stop` (`stop_strings.cut`). Raises UserError: a value that makes no
    sense, by its name in a config.
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
        """Identifies weights, tokenizer, template and number format: part of every cache key."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        done: Mapping[int, str] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[str]:
        """One continuation for each prompt, without stop tokens and special tokens.

        A call that was interrupted and is repeated with the texts it had finished in `done` (position ->
        text) returns the same texts as one that was not. What is sampled depends on the seed, the prompt
        and the number of equal prompts before it in the list: not on the rest of the list, nor on batches.
        `on_batch` is called whenever texts are finished. Raises TooLong: a prompt is over the context; what
        could be answered went to `on_batch`.
        """
        ...

    def score(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Score] | None = None,
        on_batch: OnScores | None = None,
    ) -> list[Score]:
        """log p(target | prompt) for each pair. Prompt and target are tokenised apart, then joined.

        A target that should begin with a space must be given with it, but for the one that a chat template
        writes before every answer. No end token is added. `done` and `on_batch` are as in `generate`.
        """
        ...

    def count(self, text: str) -> int:
        """Number of tokens of a text, no special tokens added."""
        ...

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix of the text, cut where a token ends, that has at most this many tokens."""
        ...

    def render(self, prompt: Prompt) -> str:
        """The text that the model reads: the chat template applied, the answer's turn opened."""
        ...

    def num_tokens(self, prompt: Prompt) -> int:
        """Number of tokens the model reads for this prompt, template and special tokens included."""
        ...


def occurrences(prompts: Sequence[Prompt]) -> list[int]:
    """How many equal prompts stand before each: which of the draws from a prompt an answer is."""
    seen: Counter[str] = Counter()
    numbers = []
    for name in (json.dumps(prompt, sort_keys=True) for prompt in prompts):
        numbers.append(seen[name])
        seen[name] += 1
    return numbers


def check_prompt(prompt: Any) -> None:
    """UserError for what is no `Prompt`, or holds a text that UTF-8 cannot."""
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
        for name in message:
            check_text(name, f"the name of a field of message {place}")
        for name in ("role", "content", *message):
            check_text(message.get(name), f"field {name!r} of message {place}")


def check_text(text: Any, what: str) -> None:
    """UserError for what is no text, or holds half of a surrogate pair."""
    if not isinstance(text, str):
        raise UserError(f"{what} is {text!r:.40}, want a text; give an empty one where nothing is said")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}, character {error.start}"
        raise UserError(
            f"{what} holds half of a surrogate pair ({half}), want whole characters; correct the text"
        ) from None
