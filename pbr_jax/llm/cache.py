"""Language models whose answers are kept, so that nothing is asked twice.

`Cached` wraps any backend. The key of an answer is the hash of all that it depends on: the backend's
fingerprint, the prompt, how it is decoded. Prompts themselves are not kept, only hashes and answers. An
answer is on disk as soon as the backend has it, so a run that is killed loses none.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pbr_jax.base.types import UserError
from pbr_jax.llm.abilities import Mixture, OnRows, PerToken, TokenLevel, TokenScores, Watch
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.protocol import LLM, OnBatch, OnScores, Prompt, Sampling, Score, occurrences
from pbr_jax.llm.usage import look_up

Able = TypeVar("Able")

_noting: ContextVar[Callable[[Sequence[str]], object] | None] = ContextVar("noting", default=None)
_unkept: ContextVar[bool] = ContextVar("unkept", default=False)


@contextmanager
def noted(note: Callable[[Sequence[str]], object]) -> Iterator[None]:
    """`note` gets the keys of all answers that are looked up or made inside, before they are made: they can
    be erased later (`Answers.erase`). An outer `note` gets them too."""
    outer = _noting.get()

    def both(keys: Sequence[str]) -> None:
        note(keys)
        if outer is not None:
            outer(keys)

    token = _noting.set(both)
    try:
        yield
    finally:
        _noting.reset(token)


@contextmanager
def unkept() -> Iterator[None]:
    """Inside no answer is looked up and none is kept: for prompts whose texts may not outlive them."""
    token = _unkept.set(True)
    try:
        yield
    finally:
        _unkept.reset(token)


class Cached:
    """A language model whose answers are looked up first; see `protocol.LLM` for the methods.

    `on_batch` is called with every answer that was not in `done`: stored ones at once, others when they
    are on disk. `offline` never calls the backend: a missing answer is a UserError.
    """

    def __init__(self, llm: LLM, file: Path, offline: bool = False) -> None:
        self._llm = llm
        self._answers = Answers(file)
        self._offline = offline

    @property
    def fingerprint(self) -> str:
        return self._llm.fingerprint

    def count(self, text: str) -> int:
        return self._llm.count(text)

    def truncate(self, text: str, tokens: int) -> str:
        return self._llm.truncate(text, tokens)

    def render(self, prompt: Prompt) -> str:
        return self._llm.render(prompt)

    def num_tokens(self, prompt: Prompt) -> int:
        return self._llm.num_tokens(prompt)

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | None = None,
        *,
        done: Mapping[int, str] | None = None,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> list[str]:
        """One continuation for each prompt, from the cache or the backend.

        Fields of `Sampling` may be given by name, too. Raises UserError where `offline` is set and an
        answer is missing, or where the cache cannot be read or written.
        """
        o = sampling = Sampling(**options) if sampling is None else replace(sampling, **options)
        decoding: dict[str, Any] = {"max_new_tokens": o.max_new_tokens}
        if o.num_beams != 1:
            decoding["num_beams"] = o.num_beams
        if o.stop:
            decoding["stop"] = list(o.stop)
        if o.temperature == 0:  # nothing is drawn: seed and nucleus do not matter
            inputs: list[Any] = [[prompt, decoding] for prompt in prompts]
        else:
            decoding |= {"temperature": float(o.temperature), "top_p": float(o.top_p), "seed": o.seed}
            inputs = [[*pair, decoding] for pair in zip(prompts, occurrences(prompts))]

        return self._complete("text", inputs, done, on_batch, partial(self._llm.generate, prompts, sampling))

    def score(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Score] | None = None,
        on_batch: OnScores | None = None,
    ) -> list[Score]:
        """log p(target | prompt) for each pair, from the cache or the backend; errors as in `generate`."""
        pairs = [[prompt, target] for prompt, target in zip(prompts, targets, strict=True)]
        return self._complete("score", pairs, done, on_batch, partial(self._llm.score, prompts, targets))

    def token_scores(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, PerToken] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[PerToken]:
        """log p of every token of each target; see `abilities.TokenScores`."""
        pairs = [[prompt, target] for prompt, target in zip(prompts, targets, strict=True)]
        ask = partial(self._able(TokenScores).token_scores, prompts, targets)
        return self._complete("row", pairs, done, on_batch, ask)

    def extend(
        self,
        mixtures: Sequence[Mixture],
        sampling: Sampling,
        *,
        done: Mapping[int, list[int]] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[list[int]]:
        """Further tokens of each answer; see `abilities.TokenLevel`."""
        o, new = sampling, sampling.max_new_tokens
        decoding = [new, float(o.temperature), float(o.top_p), o.seed] if o.temperature else [new]
        return self._complete(
            "tokens", [[mixture, decoding] for mixture in mixtures], done, on_batch,
            partial(self._able(TokenLevel).extend, mixtures, sampling),
            fits=lambda place, tokens: len(tokens) <= new,
        )  # fmt: skip

    def attention(
        self,
        watches: Sequence[Watch],
        *,
        done: Mapping[int, list[PerToken]] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[list[PerToken]]:
        """The attention that each token of each span gets; see `abilities.TokenLevel`."""
        return self._complete(
            "rows", watches, done, on_batch, partial(self._able(TokenLevel).attention, watches),
            fits=lambda place, rows: len(rows) == len(watches[place].spans),
        )  # fmt: skip

    def text(self, tokens: Sequence[int]) -> str:
        return self._able(TokenLevel).text(tokens)

    def beginning(self, target: str, tokens: int) -> str:
        return self._able(TokenLevel).beginning(target, tokens)

    def ended(self, tokens: Sequence[int]) -> bool:
        return self._able(TokenLevel).ended(tokens)

    def _able(self, ability: type[Able]) -> Able:
        if not isinstance(self._llm, ability):
            raise UserError(
                f"this language model has no {ability.__name__}; take a decoder-only one (llm.backend jax)"
            )
        return self._llm

    def _complete(
        self,
        kind: str,
        inputs: Sequence[Any],
        done: Mapping[int, Any] | None,
        on_batch: Callable[..., None] | None,
        ask: Callable[..., list[Any]],
        fits: Callable[[int, Any], bool] = lambda place, value: True,
    ) -> list[Any]:
        """The answer to every input: one that is done, stored, or made by `ask(done=, on_batch=)`.
        `fits(place, value)`: whether a stored answer has the length that was asked for."""
        if _unkept.get():
            if self._offline:
                raise UserError("these answers are never kept, and llm.offline is set; run without it")
            return ask(done=done, on_batch=on_batch)
        model = self.fingerprint
        keys = [key_of(model, kind, part) for part in inputs]
        if (note := _noting.get()) is not None:
            note(keys)
        answers: dict[int, Any] = dict(done or {})

        def take(new: Mapping[int, Any]) -> None:
            answers.update(new)
            if new and on_batch is not None:
                on_batch(list(new), list(new.values()))

        def keep(positions: Sequence[int], values: Sequence[Any]) -> None:
            new = {place: value for place, value in zip(positions, values) if place not in answers}
            # Where another process was first its answer stands, here and in every later call.
            standing = self._answers.add(kind, {keys[place]: value for place, value in new.items()})
            take({place: standing[keys[place]] for place in new})

        unknown = [place for place in range(len(keys)) if place not in answers]
        by_key = self._answers.find([keys[place] for place in unknown], kind)
        stored = {place: by_key[keys[place]] for place in unknown if keys[place] in by_key}
        if wrong := [place for place, value in stored.items() if not fits(place, value)]:
            raise UserError(
                f"{self._answers.file}: answer {keys[wrong[0]]} has another length than was asked for, so it "
                "came from elsewhere; move the file away and run again"
            )
        take(stored)
        missing = len(keys) - len(answers)
        if missing and self._offline:
            raise UserError(
                f"{missing} of {len(keys)} answers are not in {self._answers.file}, and llm.offline is set; "
                f"run without --llm.offline, or bring them with pbr-jax cache import FILE"
            )
        look_up(known=len(stored), made=missing)
        if missing:
            keep(range(len(keys)), ask(done=dict(answers), on_batch=keep))
        return [answers[place] for place in range(len(keys))]


def key_of(model: str, kind: str, request: Any) -> str:
    """What an answer is kept by: the model's fingerprint, the answer's kind, and the request as JSON."""
    return hashlib.sha256(json.dumps([model, kind, request], sort_keys=True).encode()).hexdigest()
