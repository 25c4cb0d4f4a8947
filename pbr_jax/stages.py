"""The stages of a run: a small graph from a config to raw answers.

    data ──► embed ──► (what is trained: `training_stages`) ──► rank ──► generate

Each stage is an artefact keyed by the hash of what it depends on: its part of the config, the keys of its
inputs, the version of its code. Asking for the last makes the ones before it, or finds them.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pbr_jax.artefacts import Artefact, write_text
from pbr_jax.config import to_dict
from pbr_jax.data_stages import chunks, line, progress
from pbr_jax.pipeline import pipeline
from pbr_jax.pipeline.pipeline import Messages, Pipeline, Ranking, Tally
from pbr_jax.training_stages import TrainedStages
from pbr_jax.types import Candidate

RANKING_DEPTH = 10  # retrieval benchmarks report recall and ndcg down to here, whatever retrieve.k is


class Stages(TrainedStages):
    """The stages of one config, each made or found when first asked for."""

    @cached_property
    def depth(self) -> int:
        """How many documents each user contributes to a ranking."""
        k = self.config.retrieve.k
        return max(k, RANKING_DEPTH) if self.task.kind == "retrieval" else k

    @cached_property
    def pipeline(self) -> Pipeline:
        return pipeline.build(self.config, self._resources(self.config), self.depth)

    @cached_property
    def rank(self) -> Artefact:
        """The first four slots of the pipeline: rows and scores of every example's documents."""
        config = self.config

        def make(folder: Path) -> None:
            lines = []
            examples = progress(self.store.examples(), "rankings", self.store.summary.examples)
            for chunk in chunks(examples):
                for example, ranking in zip(
                    chunk, pipeline.rank(self.pipeline, chunk, config.collaboration), strict=True
                ):
                    rows, scores = [c.row for c in ranking], [c.score for c in ranking]
                    lines.append(line({"id": example.id, "rows": rows, "scores": scores}))
            write_text(folder / "rankings.jsonl", "".join(lines))
            tally = {"counts": self._tally.counts, "seconds": self._tally.seconds}
            write_text(folder / "tally.json", json.dumps(tally))

        key = {"depth": self.depth, **self._rank_key(config)}
        return self._obtain("rank", key, make)

    @cached_property
    def tally(self) -> Tally:
        """What the first four slots counted and timed when the rankings were made."""
        values = json.loads((self.rank.path / "tally.json").read_text(encoding="utf-8"))
        return Tally(Counter(values["counts"]), values["seconds"])

    def rankings(self) -> Iterator[Ranking]:
        """Every example's ranked documents, in the order of the examples."""
        with (self.rank.path / "rankings.jsonl").open(encoding="utf-8") as file:
            for record in map(json.loads, file):
                documents = self.store.documents(record["rows"])
                triples = zip(documents, record["scores"], record["rows"], strict=True)
                yield [Candidate(*triple) for triple in triples]

    # -- answers ---------------------------------------------------------------------------------

    @cached_property
    def generate(self) -> Artefact:
        """The last two slots: the model's raw answer to every example."""
        llm = self.llm
        if llm is None or not self.generates:
            raise ValueError("this run generates nothing")

        def make(folder: Path) -> None:
            prompts = self._prompts()
            records = zip(self._answers(prompts), map(llm.num_tokens, prompts), strict=True)
            lines = [line({"text": text, "prompt_tokens": tokens}) for text, tokens in records]
            write_text(folder / "generations.jsonl", "".join(lines))

        key = {
            "rank": self.rank.key,
            "llm": llm.fingerprint,
            "batch_size": self.config.llm.batch_size,  # the batch plan can move the last bit of a logit
            "prompt": to_dict(self.config.prompt),
            "select": self.config.select.k,
            "generate": to_dict(self.config.generate),
            "seed": self.config.seed,
        }
        return self._obtain("generate", key, make)

    def _answers(self, prompts: Sequence[Messages]) -> list[str]:
        """Raw answers. Each is in the cache once it is finished, where the next attempt finds it."""
        generate = self.pipeline.generate
        if generate is None:
            raise ValueError("this run generates nothing")
        with tqdm(desc="answers", total=len(prompts), disable=None, leave=False) as bar:

            def on_batch(positions: Sequence[int], texts: Sequence[str]) -> None:
                bar.update(len(positions))

            return generate(prompts, on_batch=on_batch)

    def _prompts(self) -> list[Messages]:
        """The prompt of every example, in order."""
        prompts = []
        for chunk in chunks(zip(self.store.examples(), self.rankings(), strict=True)):
            examples, rankings = zip(*chunk, strict=True)
            prompts += self.pipeline.prompt(examples, rankings)
        return prompts

    def generations(self) -> Iterator[dict[str, Any]]:
        """Raw text and prompt length of every example, in order."""
        with (self.generate.path / "generations.jsonl").open(encoding="utf-8") as file:
            yield from map(json.loads, file)
