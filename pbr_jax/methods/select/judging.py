"""What the selections share that ask a language model: its prompts, and what they cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM, Prompt, naming, usage
from pbr_jax.methods.select.by_score import ByScore
from pbr_jax.options import LLM as Options
from pbr_jax.options import SelectLLM
from pbr_jax.pipeline import Query, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Wording
from pbr_jax.text.judging import Writer


@dataclass(frozen=True, kw_only=True)
class Judging(ByScore):
    """The frozen language model judges the candidates: it is not the generator that was tuned to the task."""

    # language model that judges the candidates. none: the one that answers, without its tuning
    llm: SelectLLM | None = None
    words: int = 300  # maximum number of words of each candidate
    max_tokens: int = 2048  # token budget of the request and all candidates in one prompt

    def check(self) -> None:
        super().check()
        self.at_least("words", 1)
        self.at_least("max_tokens", 64)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {
            "llm": language_model.frozen(run, self.llm),
            "wording": language_model.wording(run),
            **self.sharing(run),
        }

    @builds_nodes
    def model(self, run: Run) -> Options:
        """The options of the model that judges."""
        return self.llm or run.config.llm

    def reward_fn(self, llm: Any, wording: Wording, tally: Tally) -> "RewardFn":
        """The model with its prompts."""
        write = Writer(wording, self.words, self.max_tokens, llm.count, llm.truncate)
        return RewardFn(llm, write, tally, self.llm)


class RewardFn(NamedTuple):
    """The language model, what it is shown, and what that costs."""

    llm: Any
    write: Writer
    tally: Tally
    other: SelectLLM | None = None  # the options of the model, where it is not the run's

    @contextmanager
    def asking(self, ids: Iterable[str]) -> Iterator[None]:
        """Around what is asked of the model for these questions, in their order: seconds, costs, errors."""
        apart = nullcontext() if self.other is None else usage.apart("select")
        with self.tally.timed("select_llm"), apart, language_model.blaming(self.other), naming(ids):
            yield

    def counted(self, prompts: Sequence[Prompt], written: int = 0) -> None:
        """Notes calls, and the tokens that were read and written."""
        model: LLM = self.llm
        self.tally.counts["select_calls"] += len(prompts)
        self.tally.counts["select_prompt_tokens"] += sum(map(model.num_tokens, prompts))
        self.tally.counts["select_answer_tokens"] += written


def text_of(query: Query) -> str:
    """What is searched for, as one text; what an expansion repeated stands once."""
    return " ".join(dict.fromkeys(query.texts)).strip()
