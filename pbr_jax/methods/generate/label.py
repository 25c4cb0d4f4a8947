"""The most probable label: tasks with a label set are answered without decoding.

Every label is scored as the continuation of the prompt that ipa writes, so no answer is unreadable and
every answer comes with the probabilities of all labels. Calibration is Zhao et al., "Calibrate Before Use:
Improving Few-Shot Performance of Language Models", 2021, https://arxiv.org/abs/2102.09690.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, constant
from pbr_jax.llm import LLM, Score, TooLong
from pbr_jax.llm.protocol import OnBatch
from pbr_jax.options import Generate
from pbr_jax.parts.generator import generator
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Answer, Examples, GenerateSlot, PromptWriter, Ranking, Tally
from pbr_jax.tasks import Task
from pbr_jax.text.content_free import content_free, content_free_input
from pbr_jax.text.prompts import Written
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class Label(Generate):
    """The label of the highest log p(label | prompt).

    Calibration subtracts log p(label | the prompt with "N/A" for what is asked about). As published, what
    stands beside the question stays in that prompt, because the bias comes from there too (labels that are
    frequent or last among the documents). But a user's documents are also evidence: how often this user
    gives a label is subtracted with the bias. `content_free_no_documents` keeps it and subtracts what the
    task's wording alone brings.
    """

    method: Literal["label"] = "label"
    normalize: Literal["none", "tokens"] = "none"  # tokens: the mean over the label's tokens, not their sum
    calibration: Literal["none", "content_free", "content_free_no_documents"] = "none"

    def check(self) -> None:
        super().check()
        for name in ("max_new_tokens", "temperature", "top_p", "num_beams", "seed"):
            value, usual = getattr(self, name), getattr(Generate, name)
            if value != usual:
                raise UserError(
                    f"{self.named(name)} is {value}, and generate.method label decodes nothing; "
                    f"leave it at {str(usual).lower()}"
                )

    def resolved(self, task: Task) -> "Label":
        if not task.labels:
            raise UserError(
                f"generate.method label chooses among a task's labels, and {task.name} has none; "
                "take generate.method ipa"
            )
        return self

    def needs(self, run: Run) -> Mapping[str, Node]:
        run.config.llm.check_scoring("generate.method label")
        return {"llm": generator(run), "labels": constant("labels", run.task.labels)}

    def slot(self, tally: Tally, *, llm: LLM, labels: tuple[str, ...]) -> GenerateSlot:
        def generate(
            examples: Examples,
            rankings: Sequence[Ranking],
            write: PromptWriter,
            *,
            on_batch: OnBatch | None = None,
        ) -> list[Answer]:
            if not examples:
                return []
            written = write(examples, rankings)
            # Both in one call: they begin alike, and beginnings are read once.
            prompts = [*written, *self._content_free(examples, written, write)]
            pairs = [(prompt.messages, label) for prompt in prompts for label in labels]
            values = np.full((len(prompts) // len(written), len(written), len(labels)), np.nan)
            told = np.zeros(len(written), bool)

            def keep(places: Sequence[int], scores: Sequence[Score]) -> None:
                values.flat[list(places)] = list(map(self._value, scores))
                new = np.flatnonzero(~np.isnan(values).any((0, 2)) & ~told)
                told[new] = True
                if on_batch is not None:
                    best = _log_probabilities(values[:, new]).argmax(1)
                    on_batch(new.tolist(), [labels[place] for place in best])

            try:
                scores = llm.score([p for p, _ in pairs], [label for _, label in pairs], on_batch=keep)
            except TooLong as error:
                place = error.index // len(labels) % len(written)
                raise TooLong(place, error.reason) from error
            values = np.reshape(list(map(self._value, scores)), values.shape)
            found = _log_probabilities(values)
            return [
                Answer(
                    labels[row.argmax()],
                    prompt,
                    llm.num_tokens(prompt.messages),
                    dict(zip(labels, np.exp(row).tolist(), strict=True)),
                )
                for prompt, row in zip(written, found, strict=True)
            ]

        return generate

    def _content_free(
        self, examples: Examples, written: Sequence[Written], write: PromptWriter
    ) -> list[Written]:
        """The examples' prompts with nothing in place of what is asked; none where none are wanted."""
        if self.calibration == "content_free":
            return [content_free(*pair) for pair in zip(examples, written, strict=True)]
        if self.calibration == "content_free_no_documents":
            empty = [replace(example, input=content_free_input(example)) for example in examples]
            return write(empty, [[] for _ in empty])
        return []

    def _value(self, score: Score) -> float:
        return score.mean if self.normalize == "tokens" else score.total


def _log_probabilities(values: np.ndarray) -> np.ndarray:
    """`[prompts, examples, labels] -> [examples, labels]`, in nats, over the labels alone.

    Values of a second, content-free prompt are subtracted from those of the first.
    """
    found = values[0] - values[1:].sum(0)
    return found - np.logaddexp.reduce(found, axis=1, keepdims=True)
