"""The first stages of a run: examples and documents in a store, documents as vectors, models as they come."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import pbr_jax.llm
from pbr_jax.artefacts import Artefact, Log, cache_folder, obtain
from pbr_jax.config import Benchmark, Config, Encoder
from pbr_jax.data import fingerprint, read, splits, synthetic, task
from pbr_jax.index import store
from pbr_jax.llm import LLM
from pbr_jax.pipeline import expand
from pbr_jax.pipeline.pipeline import Tally
from pbr_jax.text import encode
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import UserError

# Raise a stage's number whenever its code changes what it writes.
VERSIONS = {
    "data": 4, "embed": 1, "user_encoder": 1, "feedback": 1, "retriever": 1, "reranker": 1, "rank": 3,
    "generate": 2,
}  # fmt: skip
CHUNK = 1024  # examples ranked at a time


class DataStages:
    """The stages of one config, each made or found when first asked for."""

    def __init__(self, config: Config, log: Log | None = None) -> None:
        self.config = config
        self.task = task(config.benchmark.name)
        self.artefacts: dict[str, Artefact] = {}
        self._tally = Tally()
        self._log = log

    def _obtain(
        self, stage: str, key: Mapping[str, Any], make: Callable[[Path], None], name: str = ""
    ) -> Artefact:
        """The artefact of a stage; `name` tells several of one stage apart."""
        artefact = obtain(stage, {"version": VERSIONS[stage], **key}, make, self._log)
        self.artefacts[name or stage] = artefact
        return artefact

    # -- examples --------------------------------------------------------------------------------

    @cached_property
    def taught(self) -> bool:
        """Whether anything here learns from the language model's feedback."""
        return "tuned" in (self.config.retrieve.method, self.config.select.method)

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
    def training_split(self) -> Benchmark | None:
        """The split that is learned from, None where nothing needs it or the benchmark has none.

        Raises:
          UserError: a part is to be taught, and there is no training split, or it is the evaluated one.
        """
        benchmark, config = self.benchmark, self.config
        if not self.taught and config.neighbours.method == "self":
            return None
        if benchmark.split == benchmark.training:
            if self.taught:
                raise UserError(
                    f"benchmark.split and benchmark.training are both {benchmark.split!r}: numbers would be "
                    "reported on what was learned from; evaluate another split"
                )
            return None
        if benchmark.training in splits(benchmark):
            return dataclasses.replace(benchmark, split=benchmark.training)
        if self.taught:
            raise UserError(
                f"{benchmark.root}: found the splits {', '.join(splits(benchmark))}, wanted "
                f"{benchmark.training!r}, which retrieve.method or select.method tuned learns from; set "
                "benchmark.training, or take untuned methods"
            )
        return None

    @cached_property
    def data_hash(self) -> str:
        """Hash of the files that the evaluated split is read from."""
        return fingerprint(self.benchmark)

    @cached_property
    def training_hash(self) -> str:
        """Hash of the files that the training split is read from; "" where none is."""
        return "" if self.training_split is None else fingerprint(self.training_split)

    @cached_property
    def data(self) -> Artefact:
        """The examples and documents in a store."""
        benchmark, limit, training = self.benchmark, self.config.limit, self.training_split
        few = self.config.limit_training

        def make(folder: Path) -> None:
            examples = progress(read(benchmark, limit), "examples")
            learned = progress(read(training, few), "training examples") if training is not None else ()
            store.build(folder / "store.sqlite", examples, self.task.document_target, learned)

        key = {
            "name": benchmark.name,
            "split": benchmark.split,
            "training": None if training is None else training.split,
            "as_training": benchmark.split == benchmark.training,  # whose users are named otherwise
            "limit": limit,
            "limit_training": None if training is None else few,
            "files": [self.data_hash, self.training_hash],
        }
        return self._obtain("data", key, make)

    @cached_property
    def store(self) -> store.Store:
        return store.Store(self.data.path / "store.sqlite")

    # -- documents and models --------------------------------------------------------------------

    @cached_property
    def encoder(self) -> TextEncoder:
        return _encoder(self.config.encoder)

    @cached_property
    def embeddings(self) -> Artefact:
        """One vector of the encoder for each document, memory-mapped."""
        return self._embed(self.encoder, "embed")

    def _embed(self, encoder: TextEncoder, name: str) -> Artefact:
        summary = self.store.summary

        def make(folder: Path) -> None:
            enable_compilation_cache()
            encode.embed_to_file(encoder, self.store.texts(), summary.documents, folder / "documents.npy")

        return self._obtain("embed", {"encoder": encoder.fingerprint, "texts": summary.texts}, make, name)

    @cached_property
    def generates(self) -> bool:
        method = self.config.generate.method
        return method == "ipa" or (method == "auto" and self.task.kind != "retrieval")

    @cached_property
    def llm(self) -> LLM | None:
        wanted = self.generates or self.taught or expand.uses_llm(self.config.expand)
        return pbr_jax.llm.load(self.config.llm) if wanted else None


def vectors(embeddings: Artefact) -> np.ndarray:
    """The document vectors of an artefact, float32 [n d], memory-mapped."""
    return np.load(embeddings.path / "documents.npy", mmap_mode="r")


def line(record: Mapping[str, Any]) -> str:
    """One line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def chunks(items: Iterable[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """The items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a progress bar on a terminal and silence elsewhere."""
    yield from tqdm(items, desc=what, total=total, disable=None, leave=False)


@lru_cache(maxsize=2)
def _encoder(config: Encoder) -> TextEncoder:
    """Sweeps share the loaded weights."""
    return TextEncoder(config)


@lru_cache(maxsize=1)
def enable_compilation_cache() -> None:
    """Compiled programs are kept between runs, beside the artefacts."""
    encode.enable_compilation_cache(cache_folder() / "xla")
