"""What the language model makes of a question's profile: several documents in the order of the prompt."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pbr_jax.base.files import open_private, write_text
from pbr_jax.base.types import Example, UserError
from pbr_jax.llm import Prompt
from pbr_jax.pipeline import PromptWriter, Ranking
from pbr_jax.stages.feedback import RewardFn
from pbr_jax.stages.run import line

Asked = tuple[int, tuple[int, ...]]
"""A question, and the places of its candidates in the order of the prompt."""


class Rewards:
    """The worth of profiles, each asked once: what is known stands in a file, also after a kill.

    Args:
      reward: what a prompt with these documents is worth.
      write: of prompts, each of which is written once.
      candidates: of each example, whose places profiles name.
      file: of what is known; it appears with the first answer.
      num_tokens: of a prompt, to count what was read; None: it is not counted.

    Raises:
      UserError: a question has no target.
    """

    def __init__(
        self,
        reward: RewardFn,
        write: PromptWriter,
        examples: Sequence[Example],
        candidates: Sequence[Ranking],
        file: Path,
        num_tokens: Callable[[Prompt], int] | None = None,
    ) -> None:
        missing = next((example.id for example in examples if example.target is None), None)
        if missing is not None:
            raise UserError(f"training question {missing!r} has no target; rewards need the outputs file")
        self._reward, self._write, self._file = reward, write, file
        self._examples, self._candidates = examples, candidates
        self._num_tokens = num_tokens or (lambda prompt: 0)
        self._known: dict[Asked, float] = {}
        self.prompt_tokens = 0
        if file.is_file():
            self._read()

    def __len__(self) -> int:
        """How many were asked."""
        return len(self._known)

    def __call__(self, asked: Sequence[Asked]) -> np.ndarray:
        """Their values, float32 [n]. Raises UserError for one that is not a finite number."""
        new = [one for one in dict.fromkeys(asked) if one not in self._known]
        if new:
            values, tokens = self._judged(new)
            judged = dict(zip(new, values, strict=True))
            self._check(judged)
            self._keep(judged, tokens)
            self._known.update(judged)  # what is known stands in the file
            self.prompt_tokens += sum(tokens)
        return np.array([self._known[one] for one in asked], np.float32)

    def _read(self) -> None:
        """A line that a kill has torn is taken away."""
        numbers = {example.id: number for number, example in enumerate(self._examples)}
        whole, _, torn = self._file.read_text(encoding="utf-8").rpartition("\n")
        for record in map(json.loads, whole.splitlines()):
            self._known[numbers[record["id"]], tuple(record["profile"])] = record["value"]
            self.prompt_tokens += record["tokens"]
        if torn:
            write_text(self._file, whole + "\n" * bool(whole))

    def _judged(self, new: Sequence[Asked]) -> tuple[list[float], list[int]]:
        """The values of new profiles, and the tokens that were read for each.

        Profiles of a question whose prompts are cut to the same text have one value, and are read once.
        """
        examples = [self._examples[question] for question, _ in new]
        shown = [[self._candidates[question][place] for place in profile] for question, profile in new]
        written = self._write(examples, shown)
        texts = [(question, json.dumps(prompt.messages)) for (question, _), prompt in zip(new, written)]
        first: dict[tuple[int, str], int] = {}
        for i, text in enumerate(texts):
            first.setdefault(text, i)
        places = list(first.values())
        found = self._reward(
            [examples[i] for i in places], [shown[i] for i in places], [written[i] for i in places]
        )
        values = dict(zip(places, np.asarray(found, np.float32).tolist(), strict=True))
        read = [self._num_tokens(prompt.messages) if i in values else 0 for i, prompt in enumerate(written)]
        return [values[first[text]] for text in texts], read

    def _check(self, judged: Mapping[Asked, float]) -> None:
        for (question, profile), value in judged.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the reward of training question {self._examples[question].id!r} with documents "
                    f"{list(profile)} is {value}, want a finite number; look at its target and at the "
                    "language model's scores, or take another select.reward"
                )

    def _keep(self, judged: Mapping[Asked, float], tokens: Sequence[int]) -> None:
        with open_private(self._file) as file:
            for ((question, profile), value), read in zip(judged.items(), tokens, strict=True):
                id = self._examples[question].id
                file.write(line({"id": id, "profile": profile, "value": value, "tokens": read}))
