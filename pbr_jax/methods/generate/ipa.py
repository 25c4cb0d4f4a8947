"""In-prompt augmentation: the documents stand in the prompt, the model goes on (LaMP's IPA).

Salemi et al., "LaMP: When Large Language Models Meet Personalization", 2024.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM, Sampling, reads
from pbr_jax.llm.protocol import OnBatch
from pbr_jax.options import Generate
from pbr_jax.pipeline import Answer, Examples, GenerateSlot, PromptWriter, Ranking, Tally
from pbr_jax.stages.generator import decoding
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Ipa(Generate):
    """In-prompt augmentation. All documents are in one prompt, and the answer is its continuation."""

    method: Literal["ipa"] = "ipa"

    @builds_nodes
    @classmethod
    def like(cls, run: Run) -> "Ipa":
        """With the options of the config's own method, but drawn by the run's seed.

        It answers for what is learned, which `generate.seed` leaves as it is.
        """
        o = run.config.generate
        return cls(
            max_new_tokens=o.max_new_tokens, temperature=o.temperature, top_p=o.top_p, num_beams=o.num_beams,
            stop=o.stop,
        )  # fmt: skip

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return decoding(run, self)

    def slot(
        self, tally: Tally, *, llm: LLM, max_new_tokens: int, seed: int, stop: tuple[str, ...] = ()
    ) -> GenerateSlot:
        def generate(
            examples: Examples,
            rankings: Sequence[Ranking],
            write: PromptWriter,
            *,
            on_batch: OnBatch | None = None,
        ) -> list[Answer]:
            written = write(examples, rankings)
            with tally.timed("generate_llm"):
                sampling = Sampling(max_new_tokens, self.temperature, self.top_p, self.num_beams, seed, stop)
                messages = [prompt.messages for prompt in written]
                with reads.in_order([prompt.profile != "" for prompt in written]):
                    texts = llm.generate(messages, sampling, on_batch=on_batch)
            tokens = [llm.num_tokens(prompt.messages) for prompt in written]
            tally.counts.update(
                generate_calls=len(texts),
                generate_prompt_tokens=sum(tokens),
                generate_answer_tokens=sum(map(llm.count, texts)),
            )
            return [Answer(*found) for found in zip(texts, written, tokens, strict=True)]

        return generate


@dataclass(frozen=True, kw_only=True)
class Nothing(Generate):
    """No answers are generated: documents alone are wanted."""

    method: Literal["none"] = "none"

    def resolved(self, task: Any) -> None:
        return None

    def slot(self, *_: Any, **__: Any) -> Any:
        raise ValueError("this run generates nothing")
