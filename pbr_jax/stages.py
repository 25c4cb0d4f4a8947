"""The stages of a run: a small graph from a config to raw answers.

    data ──► embed ──► rank ──► generate

Each stage is an artefact keyed by the hash of what it depends on: its part of the config, the keys of its
inputs, the version of its code. Asking for the last makes the ones before it, or finds them.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import pbr_jax.llm
from pbr_jax.artefacts import Artefact, Log, cache_folder, obtain, write_text
from pbr_jax.config import Benchmark, Config, Encoder, to_dict
from pbr_jax.data import fingerprint, read, synthetic, task
from pbr_jax.index import store
from pbr_jax.llm import LLM
from pbr_jax.pipeline import pipeline
from pbr_jax.pipeline.pipeline import Messages, Pipeline, Ranking, Resources
from pbr_jax.text import encode
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Candidate

# Raise a stage's number whenever its code changes what it writes.
VERSIONS = {"data": 2, "embed": 1, "rank": 1, "generate": 2}
RANKING_DEPTH = 10  # retrieval benchmarks report recall and ndcg down to here, whatever retrieve.k is
_CHUNK = 1024  # examples ranked at a time


class Stages:
    """The stages of one config, each made or found when first asked for."""

    def __init__(self, config: Config, log: Log | None = None) -> None:
        self.config = config
        self.task = task(config.benchmark.name)
        self.artefacts: dict[str, Artefact] = {}
        self._log = log

    def _obtain(self, name: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Artefact:
        self.artefacts[name] = obtain(name, {"version": VERSIONS[name], **key}, make, self._log)
        return self.artefacts[name]

    # -- data ------------------------------------------------------------------------------------

    @cached_property
    def benchmark(self) -> Benchmark:
        """The benchmark with its root; the synthetic one is generated where no root is given."""
        benchmark = self.config.benchmark
        if benchmark.name != "synthetic" or benchmark.root:
            return benchmark
        seed = self.config.seed
        key = {"version": synthetic.VERSION, "seed": seed}
        made = obtain("synthetic", key, lambda folder: synthetic.generate(folder, seed=seed), self._log)
        return dataclasses.replace(benchmark, root=str(made.path))

    @cached_property
    def data_hash(self) -> str:
        """Hash of the files that the split is read from."""
        return fingerprint(self.benchmark)

    @cached_property
    def data(self) -> Artefact:
        """The split's examples and documents in a store."""
        benchmark, limit = self.benchmark, self.config.limit

        def make(folder: Path) -> None:
            examples = _progress(read(benchmark, limit), "examples")
            store.build(folder / "store.sqlite", examples, self.task.document_target)

        key = {"name": benchmark.name, "split": benchmark.split, "limit": limit, "files": self.data_hash}
        return self._obtain("data", key, make)

    @cached_property
    def store(self) -> store.Store:
        return store.Store(self.data.path / "store.sqlite")

    # -- documents -------------------------------------------------------------------------------

    @cached_property
    def dense(self) -> bool:
        return self.config.retrieve.method == "dense"

    @cached_property
    def encoder(self) -> TextEncoder:
        return _encoder(self.config.encoder)

    @cached_property
    def embeddings(self) -> Artefact:
        """One vector for each document, memory-mapped."""
        summary = self.store.summary

        def make(folder: Path) -> None:
            _enable_compilation_cache()
            encode.embed_to_file(
                self.encoder, self.store.texts(), summary.documents, folder / "documents.npy"
            )

        return self._obtain("embed", {"encoder": self.encoder.fingerprint, "texts": summary.texts}, make)

    @cached_property
    def depth(self) -> int:
        """How many documents each user contributes to a ranking."""
        k = self.config.retrieve.k
        return max(k, RANKING_DEPTH) if self.task.kind == "retrieval" else k

    @cached_property
    def pipeline(self) -> Pipeline:
        _enable_compilation_cache()
        encoder = embeddings = None
        if self.dense:
            encoder = self.encoder
            embeddings = np.load(self.embeddings.path / "documents.npy", mmap_mode="r")
        resources = Resources(self.task, self.store, encoder, embeddings, self.llm)
        return pipeline.build(self.config, resources, self.depth)

    @cached_property
    def rank(self) -> Artefact:
        """The first four slots of the pipeline: rows and scores of every example's documents."""
        config = self.config

        def make(folder: Path) -> None:
            lines = []
            examples = _progress(self.store.examples(), "rankings", self.store.summary.examples)
            for chunk in _chunks(examples, _CHUNK):
                for example, ranking in zip(
                    chunk, pipeline.rank(self.pipeline, chunk, config.collaboration), strict=True
                ):
                    rows, scores = [c.row for c in ranking], [c.score for c in ranking]
                    lines.append(line({"id": example.id, "rows": rows, "scores": scores}))
            write_text(folder / "rankings.jsonl", "".join(lines))

        slots = ("expand", "neighbours", "retrieve", "select")
        key = {
            "data": self.data.key,
            "embeddings": self.embeddings.key if self.dense else None,
            "depth": self.depth,
            "seed": config.seed,
            "collaboration": config.collaboration,
            **{slot: to_dict(getattr(config, slot)) for slot in slots},
        }
        return self._obtain("rank", key, make)

    def rankings(self) -> Iterator[Ranking]:
        """Every example's ranked documents, in the order of the examples."""
        with (self.rank.path / "rankings.jsonl").open(encoding="utf-8") as file:
            for record in map(json.loads, file):
                documents = self.store.documents(record["rows"])
                triples = zip(documents, record["scores"], record["rows"], strict=True)
                yield [Candidate(*triple) for triple in triples]

    # -- answers ---------------------------------------------------------------------------------

    @cached_property
    def generates(self) -> bool:
        method = self.config.generate.method
        return method == "ipa" or (method == "auto" and self.task.kind != "retrieval")

    @cached_property
    def llm(self) -> LLM | None:
        return pbr_jax.llm.load(self.config.llm) if self.generates else None

    @cached_property
    def generate(self) -> Artefact:
        """The last two slots: the model's raw answer to every example."""
        llm = self.llm
        if llm is None:
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
        for chunk in _chunks(zip(self.store.examples(), self.rankings(), strict=True), _CHUNK):
            examples, rankings = zip(*chunk, strict=True)
            prompts += self.pipeline.prompt(examples, rankings)
        return prompts

    def generations(self) -> Iterator[dict[str, Any]]:
        """Raw text and prompt length of every example, in order."""
        with (self.generate.path / "generations.jsonl").open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def line(record: Mapping[str, Any]) -> str:
    """One line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a progress bar on a terminal and silence elsewhere."""
    yield from tqdm(items, desc=what, total=total, disable=None, leave=False)


@lru_cache(maxsize=2)
def _encoder(config: Encoder) -> TextEncoder:
    """Sweeps share the loaded weights."""
    return TextEncoder(config)


@lru_cache(maxsize=1)
def _enable_compilation_cache() -> None:
    encode.enable_compilation_cache(cache_folder() / "xla")
