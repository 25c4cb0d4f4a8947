"""The most probable label or option: such tasks are answered without decoding.

Every label is scored as the continuation of the prompt that ipa writes, so no answer is unreadable and
every answer comes with the probabilities of all labels. Calibration is Zhao et al., "Calibrate Before Use:
Improving Few-Shot Performance of Language Models", 2021, https://arxiv.org/abs/2102.09690.

Where questions have options of their own (`Example.options`), these are listed behind the question in several
orders (`pbr_jax.text.choices`), and an option's log-probability is the mean over the orders. Where a question
with its options is longer than `prompt.max_tokens` its middle is cut; `cut_options` counts the questions that
lost a part of their options, and the results have a note.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes, constant
from pbr_jax.llm import LLM, Score, TooLong
from pbr_jax.llm.protocol import OnBatch
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.options import Generate, added, swapped
from pbr_jax.pipeline import Answer, Examples, GenerateSlot, PromptWriter, Ranking, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Task
from pbr_jax.text.choices import LETTERS, content_free, content_free_input, listed, orders
from pbr_jax.text.prompts import Written


class Ballot(NamedTuple):
    """A prompt's example, and what is scored behind it for each answer; `order`: the answer at each place of
    the list, () where none is listed."""

    example: Example
    targets: tuple[str, ...]
    order: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Label(Generate):
    """The label or option with the highest log p(label | prompt).

    Calibration subtracts log p(label | prompt with "N/A" in place of the question). As published
    (`content_free`), this prompt keeps the documents, because they also cause the bias: labels that are
    frequent or last among them are favoured. However, a user's documents are evidence too, and how often this
    user gives a label is then subtracted with the bias. `content_free_no_documents` keeps this evidence and
    subtracts only the effect of the task's wording. Its prompt has no text about the user (`prompt.profile`)
    either, which is evidence in the same way.
    """

    method: Literal["label"] = "label"
    # score of a label. none: the sum of its tokens' log-probabilities; tokens: their mean
    normalize: Literal["none", "tokens"] = "none"
    # whether a bias of the labels is subtracted: their log-probability with "N/A" in place of the question.
    # content_free: with the documents and the text about the user in that prompt; content_free_no_documents:
    # without them
    calibration: Literal["none", "content_free", "content_free_no_documents"] = "none"
    # how a question's options are scored. text: each option, listed in the prompt; letter: its letter in that
    # list; cloze: each option, without a list
    options: Literal["text", "letter", "cloze"] = field(default="text", metadata=added("text"))
    # divisor of an option's log-probability. total: none, which favours short options
    length: Literal["per_token", "per_byte", "total"] = field(
        default="per_token", metadata=added("per_token")
    )
    # number of orders in which options are listed. None: as many as there are options, so that each option
    # has each position once
    permutations: int | None = field(default=None, metadata=added(None))

    def check(self) -> None:
        super().check()
        self.at_least("permutations", 1)
        for name in ("max_new_tokens", "temperature", "top_p", "num_beams", "stop", "seed"):
            value, usual = getattr(self, name), getattr(Generate, name)
            if value != usual:
                raise UserError(
                    f"{self.named(name)} is {value}, and generate.method label decodes nothing; "
                    f"leave it at {str(usual).lower()}"
                )

    def resolved(self, task: Task) -> "Label":
        if not task.labels and task.kind != "choice":
            raise UserError(
                "generate.method label chooses among a task's labels or a question's options, and "
                f"{task.name} has none; take generate.method ipa"
            )
        return self

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        run.config.llm.check_scoring("generate.method label")
        seed = {} if run.task.labels else {"seed": constant("seed", run.config.seed)}
        bare = {}
        if self.calibration == "content_free_no_documents":
            prompt = replace(run.config.prompt, profile="none")
            bare = {"bare": language_model.writer(run.changed(prompt=prompt))}
        return {"llm": generator(run), "labels": constant("labels", run.task.labels), **seed, **bare}

    @builds_nodes
    def check_run(self, run: Run) -> None:
        store: Store = run.data.value
        for example in () if run.task.labels else store.examples():
            _check_options(example)

    def slot(
        self,
        tally: Tally,
        *,
        llm: LLM,
        labels: tuple[str, ...],
        seed: int = 0,
        bare: PromptWriter | None = None,
    ) -> GenerateSlot:
        def generate(
            examples: Examples,
            rankings: Sequence[Ranking],
            write: PromptWriter,
            *,
            on_batch: OnBatch | None = None,
        ) -> list[Answer]:
            if not examples:
                return []
            ballots = [self._ballots(example, labels, seed) for example in examples]
            asked = [ballot.example for own in ballots for ballot in own]
            written = write(asked, [ranking for ranking, own in zip(rankings, ballots) for _ in own])
            tally.counts.update(_cut(ballots, written))
            # Both in one call: they begin alike, and beginnings are read once.
            prompts = [*written, *self._content_free(asked, written, bare)]
            count = _Count(ballots, len(prompts) // len(written))
            pairs = count.pairs(prompts)

            def value(place: int, score: Score) -> float:
                return self._label(score) if labels else self._option(score, pairs[place][1])

            def keep(places: Sequence[int], scores: Sequence[Score]) -> None:
                new = count.keep(places, list(map(value, places, scores)))
                if on_batch is not None:
                    on_batch(new, [_texts(examples[i], labels)[count.best(i)] for i in new])

            try:
                scores = llm.score([p for p, _ in pairs], [target for _, target in pairs], on_batch=keep)
            except TooLong as error:
                raise TooLong(count.owner(error.index), error.reason) from error
            count.keep(range(len(pairs)), list(map(value, range(len(pairs)), scores)))
            firsts = np.cumsum([0, *map(len, ballots[:-1])])
            return [
                Answer(
                    texts[count.best(i)],
                    written[first],
                    llm.num_tokens(written[first].messages),
                    dict(zip(texts, np.exp(count.log_probabilities(i)).tolist(), strict=True)),
                    count.places(i),
                )
                for i, first in enumerate(firsts)
                for texts in [_texts(examples[i], labels)]
            ]

        return generate

    def _ballots(self, example: Example, labels: tuple[str, ...], seed: int) -> list[Ballot]:
        """The prompts that an example is asked by."""
        if labels:
            return [Ballot(example, labels)]
        _check_options(example)
        count, name = len(options := example.options), f"{example.user_id}\0{example.id}"
        if self.options == "cloze":
            return [Ballot(example, options)]
        ballots = []
        for order in orders(count, self.permutations, seed=seed, name=name):
            letters = tuple(LETTERS[order.index(option)] for option in range(count))
            shown = replace(example, input=listed(example.input, [options[option] for option in order]))
            ballots.append(Ballot(shown, letters if self.options == "letter" else options, tuple(order)))
        return ballots

    def _content_free(
        self, examples: Examples, written: Sequence[Written], bare: PromptWriter | None
    ) -> list[Written]:
        """The examples' prompts with nothing in place of what is asked; none where none are wanted.

        `bare` writes prompts without a text about the user.
        """
        if self.calibration == "content_free":
            return [content_free(*pair) for pair in zip(examples, written, strict=True)]
        if bare is not None:
            empty = [replace(example, input=content_free_input(example)) for example in examples]
            return bare(empty, [[] for _ in empty])
        return []

    def _label(self, score: Score) -> float:
        return score.mean if self.normalize == "tokens" else score.total

    def _option(self, score: Score, text: str) -> float:
        return {
            "per_token": score.mean,
            "per_byte": score.total / max(len(text.encode()), 1),
            "total": score.total,
        }[self.length]


def _cut(ballots: Sequence[Sequence[Ballot]], written: Sequence[Written]) -> Counter[str]:
    """How many questions have a prompt in which their options do not stand whole."""
    prompts, cut = iter(written), 0
    for own in ballots:
        shown = [(ballot, next(prompts).messages[-1]["content"]) for ballot in own]
        cut += any(
            listed("", [ballot.example.options[option] for option in ballot.order]) not in text
            for ballot, text in shown
            if ballot.order
        )
    return Counter(cut_options=cut) if cut else Counter()


class _Count:
    """The values of all answers behind all prompts, which come in any order.

    `layers`: how many prompts each ballot has, the first with the question, the others without; values of
    those are subtracted from the first's.
    """

    def __init__(self, ballots: Sequence[Sequence[Ballot]], layers: int) -> None:
        self._ballots, self._layers = ballots, layers
        sizes = [sum(len(ballot.targets) for ballot in own) for own in ballots]
        self._starts = np.cumsum([0, *sizes])
        self._owners = np.repeat(np.arange(len(ballots)), sizes)
        self._values = np.full((layers, len(self._owners)), np.nan)
        self._told = np.zeros(len(ballots), bool)

    def pairs(self, prompts: Sequence[Written]) -> list[tuple[list[dict[str, str]], str]]:
        """Every prompt with every answer, layer by layer."""
        flat = [ballot for own in self._ballots for ballot in own] * self._layers
        return [(p.messages, target) for p, b in zip(prompts, flat, strict=True) for target in b.targets]

    def owner(self, place: int) -> int:
        """The example that a pair belongs to."""
        return int(self._owners[place % len(self._owners)])

    def keep(self, places: Sequence[int], values: Sequence[float]) -> list[int]:
        """Keeps values of pairs; the examples of which all are known now, and were not before."""
        self._values.flat[list(places)] = values
        unknown = np.bincount(self._owners[np.isnan(self._values).any(0)], minlength=len(self._told))
        new = np.flatnonzero((unknown == 0) & ~self._told)
        self._told[new] = True
        return new.tolist()

    def log_probabilities(self, example: int) -> np.ndarray:
        """float [answers], in nats, over the answers alone: of the mean over orders."""
        found = self._of(example).mean(0)
        return found - np.logaddexp.reduce(found)

    def best(self, example: int) -> int:
        """The most probable answer; of equal ones the first."""
        return int(self.log_probabilities(example).argmax())

    def places(self, example: int) -> tuple[float, ...] | None:
        """In which share of the orders the answer at each place was the best; None where none is listed."""
        listed = [ballot.order for ballot in self._ballots[example]]
        if not any(listed):
            return None
        best = self._of(example).argmax(1).tolist()
        chosen = [order.index(answer) for order, answer in zip(listed, best, strict=True)]
        return tuple(chosen.count(place) / len(chosen) for place in range(len(listed[0])))

    def _of(self, example: int) -> np.ndarray:
        """float [orders, answers]."""
        start, end = self._starts[example : example + 2]
        values = self._values[:, start:end].reshape(self._layers, len(self._ballots[example]), -1)
        return values[0] - values[1:].sum(0)


def _texts(example: Example, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The answers that there are."""
    return labels or example.options


def _check_options(example: Example) -> None:
    """Raises UserError for options that cannot be chosen among."""
    count = len(options := example.options)
    if len({" ".join(option.split()) for option in options}) < count:
        raise UserError(
            f"question {example.id!r} has equal options ({list(options)!r:.80}), and one alone would be "
            "counted as right; offer each once"
        )
    if not 2 <= count <= len(LETTERS):
        raise UserError(
            f"question {example.id!r} has {count} options, and generate.method label chooses among 2 to "
            f"{len(LETTERS)}; take generate.method ipa, or data with options"
        )


@dataclass(frozen=True, kw_only=True)
class Auto(Generate):
    """In-prompt augmentation (ipa). For questions with options label is used instead, and on retrieval
    benchmarks nothing is answered."""

    method: Literal["auto"] = "auto"

    def resolved(self, task: Task) -> Ipa | Label | None:
        if task.kind == "choice":
            return swapped(self, Label)
        return None if task.kind == "retrieval" else swapped(self, Ipa)

    def slot(self, *_: Any, **__: Any) -> Any:
        raise ValueError("auto stands for another method; see `resolved`")
