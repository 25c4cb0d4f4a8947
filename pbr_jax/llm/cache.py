"""Language models whose answers are kept, so that nothing is asked twice.

`Cached` wraps any backend. The key of an answer is the hash of all that it depends on: the backend's
fingerprint, the prompt, how it is decoded. Prompts themselves are not kept, only hashes and answers. An
answer is on disk as soon as the backend has it, so a run that is killed loses none.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from pbr_jax.base.types import UserError
from pbr_jax.llm.answers_file import Answers
from pbr_jax.llm.protocol import (
    LLM,
    Mixture,
    PerToken,
    Progress,
    Prompt,
    Prompts,
    Sampling,
    Score,
    TokenLevel,
    Unanswered,
    Watch,
    occurrences,
)
from pbr_jax.llm.usage import bound, look_up

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

    with bound(_noting, both):
        yield


def unkept() -> AbstractContextManager[bool]:
    """Inside no answer is looked up and none is kept: for prompts whose texts may not outlive them."""
    return bound(_unkept, True)


class Cached:
    """A language model whose answers are looked up first; see `protocol.LLM` for the methods.

    `on_batch` is called with every answer that was not in `done`: stored ones at once, others when they
    are on disk. `offline` never calls the backend: a missing answer is a UserError. With another number
    `again` than 0 none of the answers is found that were made with other numbers. `name`: of the model, by
    which its answers can be erased.
    """

    def __init__(
        self, llm: LLM, file: Path, offline: bool = False, *, again: int = 0, name: str = ""
    ) -> None:
        self._llm = llm
        self._answers = Answers(file)
        self._offline = offline
        self._again, self._name = again, name

    @property
    def fingerprint(self) -> str:
        return f"{self._llm.fingerprint} {self._again}" if self._again else self._llm.fingerprint

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
        prompts: Prompts,
        sampling: Sampling | None = None,
        *,
        done: Mapping[int, str] | None = None,
        on_batch: Callable[[Sequence[int], Sequence[str]], None] | None = None,
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
        progress = Progress(done=done, on_batch=on_batch)
        return self._complete("text", inputs, partial(self._llm.generate, prompts, sampling), progress)

    def score(self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]) -> list[Score]:
        """log p(target | prompt) for each pair, from the cache or the backend; errors as in `generate`."""
        pairs = [[prompt, target] for prompt, target in zip(prompts, targets, strict=True)]
        return self._complete("score", pairs, partial(self._llm.score, prompts, targets), progress)

    def token_scores(
        self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]
    ) -> list[PerToken]:
        """log p of every token of each target; see `protocol.TokenLevel`."""
        pairs = [[prompt, target] for prompt, target in zip(prompts, targets, strict=True)]
        ask = partial(self._token_level.token_scores, prompts, targets)
        return self._complete("row", pairs, ask, progress)

    def extend(
        self, mixtures: Sequence[Mixture], sampling: Sampling, **progress: Unpack[Progress]
    ) -> list[list[int]]:
        """Further tokens of each answer; see `protocol.TokenLevel`."""
        o, new = sampling, sampling.max_new_tokens
        decoding = [new, float(o.temperature), float(o.top_p), o.seed] if o.temperature else [new]
        ask = partial(self._token_level.extend, mixtures, sampling)
        return self._complete("tokens", [[mixture, decoding] for mixture in mixtures], ask, progress)

    def attention(self, watches: Sequence[Watch], **progress: Unpack[Progress]) -> list[list[PerToken]]:
        """The attention that each token of each span gets; see `protocol.TokenLevel`."""
        return self._complete("rows", watches, partial(self._token_level.attention, watches), progress)

    def text(self, tokens: Sequence[int]) -> str:
        return self._token_level.text(tokens)

    def beginning(self, target: str, tokens: int) -> str:
        return self._token_level.beginning(target, tokens)

    def ended(self, tokens: Sequence[int]) -> bool:
        return self._token_level.ended(tokens)

    @property
    def _token_level(self) -> TokenLevel:
        if not isinstance(self._llm, TokenLevel):
            raise UserError(
                "this language model cannot be led token by token; take a decoder-only one (llm.backend jax)"
            )
        return self._llm

    def _complete(
        self, kind: str, inputs: Sequence[Any], ask: Callable[..., list[Any]], progress: Progress
    ) -> list[Any]:
        """The answer to every input: one that is done, stored, or made by `ask(done=, on_batch=)`."""
        if _unkept.get():
            if self._offline:
                raise UserError("these answers are never kept, and llm.offline is set; run without it")
            return ask(**progress)
        model, on_batch = self.fingerprint, progress.get("on_batch")
        keys = [key_of(model, kind, part) for part in inputs]
        if (note := _noting.get()) is not None:
            note(keys)
        answers: dict[int, Any] = dict(progress.get("done") or {})

        def take(new: Mapping[int, Any]) -> None:
            answers.update(new)
            if new and on_batch is not None:
                on_batch(list(new), list(new.values()))

        def keep(positions: Sequence[int], values: Sequence[Any]) -> None:
            new = {place: value for place, value in zip(positions, values) if place not in answers}
            kept = {keys[place]: value for place, value in new.items() if not isinstance(value, Unanswered)}
            # Where another process was first its answer stands, here and in every later call.
            standing = self._answers.add(kind, kept, self._name)
            take({place: standing.get(keys[place], value) for place, value in new.items()})

        unknown = [place for place in range(len(keys)) if place not in answers]
        by_key = self._answers.find([keys[place] for place in unknown], kind)
        stored = {place: by_key[keys[place]] for place in unknown if keys[place] in by_key}
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


class Counting(Cached):
    """A language model that counts what it is asked, and answers nothing: it needs no weights.

    Answers are made up: empty texts, and every token of a target has probability 1 / e. Requests whose
    answers the cache has are not counted, and equal ones count once.

    Args:
      llm: whose tokenizer counts; it is asked for nothing else.
      file: the cache of answers, which is read and never written. None: nothing is known.
    """

    def __init__(self, llm: LLM, file: Path | None, *, again: int = 0) -> None:
        super().__init__(llm, file or Path("/nonexistent"), again=again)
        self._looks = file is not None and file.is_file()
        self._seen: set[str] = set()
        self.scored: list[tuple[int, int]] = []  # tokens of each new request: of its prompt and its target
        self.written: list[tuple[int, int]] = []  # of its prompt, and the most that its answer may have

    def _complete(
        self, kind: str, inputs: Sequence[Any], ask: Callable[..., list[Any]], progress: Progress
    ) -> list[Any]:
        if kind not in ("text", "score", "row"):
            raise UserError("the model is led token by token, which is not counted beforehand")
        model = self.fingerprint if self._looks else ""
        keys = [key_of(model, kind, part) for part in inputs]
        stored = self._answers.find(keys, kind) if self._looks else {}
        answers = []
        for key, part in zip(keys, inputs, strict=True):
            prompt, last = part[0], part[-1]
            following = last["max_new_tokens"] if kind == "text" else self.count(last)
            if key not in stored and key not in self._seen:
                self._seen.add(key)
                lengths = (self.num_tokens(prompt), following)
                (self.written if kind == "text" else self.scored).append(lengths)
            made = {"text": "", "score": Score(-float(following), following), "row": [-1.0] * following}
            answers.append(stored.get(key, made[kind]))
        if (on_batch := progress.get("on_batch")) is not None:
            on_batch(range(len(answers)), answers)
        return answers


def key_of(model: str, kind: str, request: Any) -> str:
    """What an answer is kept by: the model's fingerprint, the answer's kind, and the request as JSON."""
    return hashlib.sha256(json.dumps([model, kind, request], sort_keys=True).encode()).hexdigest()
