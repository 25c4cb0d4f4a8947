"""What a language model can do beyond `protocol.LLM`, token by token. Decoder-only models in this process
can do all of it; for others the options raise an error before any work (`options.LLM.check_scoring`,
`check_tokens`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pbr_jax.llm.protocol import LLM, Prompt, Sampling

PerToken = list[float]
"""A number for each token: its log-probability, or the attention that it gets."""
OnRows = Callable[[Sequence[int], Sequence[Any]], None]
"""Called with positions and values as soon as they are finished."""


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
class TokenScores(LLM, Protocol):
    """A model that says how probable each token of an answer is."""

    def token_scores(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, PerToken] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[PerToken]:
        """log p of every token of each target, in nats; their sums are `score`'s totals."""
        ...


@runtime_checkable
class TokenLevel(TokenScores, Protocol):
    """A model that can be led token by token, and looked into."""

    def extend(
        self,
        mixtures: Sequence[Mixture],
        sampling: Sampling,
        *,
        done: Mapping[int, list[int]] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[list[int]]:
        """Further tokens of each answer, the last one a stop token where the answer ends."""
        ...

    def attention(
        self,
        watches: Sequence[Watch],
        *,
        done: Mapping[int, list[PerToken]] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[list[PerToken]]:
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
