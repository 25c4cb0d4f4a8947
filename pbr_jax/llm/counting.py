"""A language model that counts what it is asked, and answers nothing: it needs a tokenizer and no weights.

Answers are made up: empty texts, and every token of a target has probability 1 / e. Requests whose answers
the cache has, and equal ones, count once or not at all, as in `cache.Cached`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.llm.cache import Cached, key_of
from pbr_jax.llm.protocol import LLM, Score


class Counting(Cached):
    """Args:
    llm: whose tokenizer counts; it is asked for nothing else.
    file: the cache of answers, which is read and never written. None: nothing is known.
    """

    def __init__(self, llm: LLM, file: Path | None) -> None:
        super().__init__(llm, file or Path("/nonexistent"))
        self._looks = file is not None and file.is_file()
        self._seen: set[str] = set()
        self.scored: list[tuple[int, int]] = []  # tokens of each new request: of its prompt and its target
        self.written: list[tuple[int, int]] = []  # of its prompt, and the most that its answer may have

    def _complete(
        self,
        kind: str,
        inputs: Sequence[Any],
        done: Mapping[int, Any] | None,
        on_batch: Callable[..., None] | None,
        ask: Callable[..., list[Any]],
        fits: Callable[[int, Any], bool] = lambda place, value: True,
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
        if on_batch is not None:
            on_batch(range(len(answers)), answers)
        return answers
