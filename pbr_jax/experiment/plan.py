"""Builds the graph of a run from its config, without computing anything.

data ──► (what the methods need) ──► rank ──► generate, likelihood
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from pbr_jax.base import processes
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest
from pbr_jax.cache.code import code_of
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store
from pbr_jax.data import task
from pbr_jax.experiment import evaluation as results
from pbr_jax.experiment.run_folder import REMARKS
from pbr_jax.graph import Node, Slot, Stage, Value, constant, tell, walk
from pbr_jax.graph.lists import numbered, substituted, unified
from pbr_jax.llm import is_t5
from pbr_jax.methods.generate import Ipa, Label
from pbr_jax.models.pretrained import locate
from pbr_jax.options import key_of, swapped
from pbr_jax.pipeline import Pipeline
from pbr_jax.stages import language_model
from pbr_jax.stages.answers import documents_in_prompt, wants_likelihoods
from pbr_jax.stages.data import Data, data
from pbr_jax.stages.generator import generator
from pbr_jax.stages.judged import judged
from pbr_jax.stages.late_interaction import Ragged
from pbr_jax.stages.rankings import slots
from pbr_jax.stages.run import Run
from pbr_jax.stages.vectors import encoder
from pbr_jax.stream import folds
from pbr_jax.stream import stage as stream
from pbr_jax.stream.arrival import Arrivals, arrivals
from pbr_jax.stream.outputs import Outputs, batch
from pbr_jax.system import System
from pbr_jax.tasks.scoring import scorable


def check_process() -> None:
    """Raises UserError for a process in which no run ends; starts no backend.

    In a fork of a process whose JAX has started, JAX waits for threads that are not there. With 64 bits, the
    models' states change their type. And processes under `jax.distributed` that `hosts` has not joined wait
    for each other: one for a lock, another for a collective operation.
    """
    if _fork_of_started:
        raise UserError(
            "this process was forked from one in which JAX had started, so JAX would wait for ever; make "
            'processes with multiprocessing.get_context("spawn"), or use pbr-jax sweep --max-parallel'
        )
    if jax.dtypes.canonicalize_dtype(float).itemsize == 8:
        raise UserError(
            "JAX is set to 64 bits (JAX_ENABLE_X64), and the models need 32; unset JAX_ENABLE_X64, or call "
            'jax.config.update("jax_enable_x64", False)'
        )
    if jax.distributed.is_initialized() and not processes.joined():
        raise UserError(
            "this is one of several processes under jax.distributed.initialize, which do not know of each "
            "other; start them with pbr-jax run CONFIG --distributed, which calls it"
        )


def _check_hosts(config: Config) -> None:
    """Raises UserError for what several processes cannot make together yet."""
    if config.stream.active and stream.learners(config):
        raise UserError(
            "methods that learn from a stream (stream.size) run in one process; leave --distributed out"
        )
    if (there := jax.local_device_count()) % config.llm.tensor_parallel:
        raise UserError(
            f"llm.tensor_parallel is {config.llm.tensor_parallel}, and every host has {there} devices, which "
            "hold whole copies of the model; set it to a number that divides them"
        )
    if config.llm.backend == "jax" and is_t5(locate(config.llm.model)):
        raise UserError(
            f"llm.model {config.llm.model} is a T5, which takes one process; leave --distributed out"
        )


_fork_of_started: list[bool] = []  # filled in a process that was forked after JAX had started


def _note_fork() -> None:
    count = jax.config.values["jax_num_cpu_devices"]
    try:  # JAX refuses another count once it has started
        jax.config.update("jax_num_cpu_devices", count + 1)
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        _fork_of_started.append(True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

# Of a system.
_PARTS = {"store", *Pipeline._fields, "write", "generate", "llm", "answer_format"}
_PARTS |= {"remarks", "judge", "claim_encoder"}


class Plan:
    """The nodes of one config.

    The class and its properties raise UserError for errors that the user can correct, such as a wrong
    benchmark, split or method.
    """

    def __init__(self, config: Config) -> None:
        check_process()
        if type(config) is not Config:
            raise UserError(f"found a {type(config).__name__}, want a pbr_jax.config.Config itself")
        self.config = config
        if processes.several():
            _check_hosts(config)
        self.task = task(config.benchmark)
        self.folded, learns = folds.is_folded(config), bool(stream.learners(config))
        source = self._source(config.limit)
        self.hashes = source.hashes
        self.run = Run(config, self.task, source.node, {}, source.training)
        method = config.generate.resolved(self.task)
        scored = wants_likelihoods(self.run, method)
        program = folds.folded if self.folded else stream.streamed if learns else batch
        outputs = program(self.run, config, method, scored)
        if self.folded:  # new questions are answered by what all folds taught
            self.run = folds.taught_by_all(self.run)
        nodes = {**outputs.nodes(), **judged(self.run, source.node, outputs.answered)}
        self.last = unified(Value("results", (), nodes, dict))
        known = {node.key: node for node in walk(self.last)}
        self.ranked, self.answered, self.scored, self.judged = Outputs(**self.last.needs)
        self.data = _stage(known[source.node.key])
        apart = None if source.training is None else known.get(source.training.key)
        self.training = None if apart is None else _stage(apart)  # the store that is learned from, if another
        self.streamed = _stage(self.ranked.needs["streamed"]) if learns else None
        # The store of the documents that were ranked.
        self.store = self.data if self.streamed is None else stream.ranked_store(self.streamed)

    def _source(self, limit: int | None) -> Data:
        """The data, of so many examples."""
        return data(
            self.config.benchmark,
            self.task,
            [] if self.folded else [*self.config.methods, self.config.generator],
            limit=limit,
            limit_training=self.config.limit_training,
            limit_history=self.config.limit_history,
            corpus=self.config.corpus,
        )

    @cached_property
    def last_slots(self) -> dict[str, Node]:
        """The slots that answer new questions, and their store, where these are not the run's."""
        if self.folded:
            everyone, joined = slots(self.run), _stage(self.ranked)
            by_fold = {name: folds.ByFold(name, joined, own) for name, own in everyone.items()}
            return {"store": self.data, **by_fold}
        return {} if self.streamed is None else stream.last(self.streamed)

    def check(self) -> None:
        """Checks all models, files and batch sizes before any computation."""
        for node in walk(self.last):
            node.check()
        self._check_questions()
        _ = self.arrivals

    def _check_questions(self) -> None:
        """Raises UserError for questions that what evaluates the run could not score, and where there are
        none."""
        benchmark, store = self.config.benchmark, self.data.value
        place = f"{benchmark.root or benchmark.name}, split {benchmark.split}"
        if not store.summary.examples:
            raise UserError(f"{place}: found no question, wanted some; add them to the split's file")
        method = self.config.generate.resolved(self.task)
        if method is not None or self.task.kind == "retrieval":
            metrics = ["accuracy"] if isinstance(method, Label) else []
            asked, answered = [*store.examples()], method is not None
            _ = [*scorable(self.task, asked, place, answered=answered, metrics=metrics)]

    @cached_property
    def arrivals(self) -> Arrivals | None:
        """The order in which questions arrive; None: there is no stream."""
        options = self.config.stream
        return arrivals(options, self.config.seed, [*self.data.value.examples()] if options.active else [])

    def system(self, corpus: Path | None = None) -> System:
        """The system of the config's methods. If the config generates no answers, it uses `ipa`.

        Everything is loaded or computed when it is first needed. `corpus` is the file for a living copy of
        the store, which is made at the first change; None: a temporary file.
        """
        config = self.config
        if self.folded and config.generator.is_tuned:
            tell("generator", "learned from all folds: it has seen the targets of the run's own questions")
        living = self._corpus(corpus)
        return System(
            living.parts if corpus is not None and corpus.is_file() else _Values(self._nodes),
            collaboration=config.collaboration,
            documents=documents_in_prompt(self.run),
            living=living,
        )

    def origin(self) -> Store:
        """The store that a living copy is made from: that of all users, if the parts can take them in."""
        return self._corpus(None).source.value

    def _corpus(self, file: Path | None) -> "_Corpus":
        limited = self.config.limit is not None and not self.last_slots
        whole = _stage(self._source(None).node) if limited else None
        return _Corpus(self.data, self._nodes, file, whole)

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        """The parts of a system."""
        run, config = self.run, self.config
        method = config.generate.resolved(self.task) or swapped(config.generate, Ipa)
        nodes: dict[str, Node] = {
            "write": language_model.writer(run),
            "llm": generator(run),
            "generate": Slot(method, run),
            "answer_format": language_model.answer_format(run),
            "remarks": constant("remarks", config.remarks),
            "judge": language_model.judge(run),
            "claim_encoder": encoder(run),
        }
        # What these have loaded is not loaded twice.
        for stage in (self.scored, self.answered, self.ranked, self.streamed):
            nodes |= {} if stage is None else stage.needs
        nodes |= self.last_slots
        nodes = {name: node for name, node in nodes.items() if name in _PARTS}
        compared = config.neighbours.needs(run)
        nodes |= {name: compared[name] for name in ("users", "cohorts") if name in compared}
        return nodes

    @cached_property
    def identity(self) -> dict[str, str]:
        """Everything that a finished run depends on: config, computation, evaluation and data."""
        return {
            "config": digest(key_of(self.config)),
            "run": self.last.key,
            "evaluation": code_of(results.evaluated),
            "task": digest(key_of([self.task.kind, self.task.metrics, self.task.answers])),
            **self.hashes,
        }

    @cached_property
    def name(self) -> str:
        """The hash of the identity: sixteen hexadecimal digits."""
        return digest(self.identity)

    @cached_property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Hashes of each node's inputs other than its needs, which show why two runs differ."""
        found: dict[str, dict[str, Any]] = {}
        for node in walk(self.last):
            label = node.label if isinstance(node, Stage) else node.name
            own = {name: digest(value) for name, value in node.identity.items() if name != "needs"}
            found[numbered(label, found)] = own
        return found


class _Values(dict[str, Any]):
    """The values of nodes, each computed when it is first read."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name).value


class _Corpus:
    """The parts of a system over a store that may be written to.

    Args:
      data: the stage of the store that the run is made from.
      nodes: the parts over that store.
      file: of the copy; None: a temporary one, as long as this object.
      unlimited: the stage of the store of all users, where the run's own is limited.
    """

    def __init__(
        self, data: Stage, nodes: Mapping[str, Node], file: Path | None, unlimited: Stage | None
    ) -> None:
        self._data, self._nodes, self._file, self._unlimited = data, nodes, file, unlimited

    def __call__(self, *, grows: bool) -> Mapping[str, Any]:
        """The parts over the copy, which is made where there is none.

        Raises UserError where a learner has a store of its own, and where documents are to be added and a
        part has vectors of the run's alone.
        """
        if self._nodes["store"].value.living:
            raise UserError(
                "a method of this run keeps a corpus of its own, which it alone writes to; change the "
                "benchmark's files and run again, into another folder; to forget a user, delete the stream's "
                "stage from the cache too"
            )
        if grows and (fixed := self._fixed) is not None:
            raise UserError(
                f"stage {fixed} has vectors of the run's documents alone, so none can be added; "
                "take other methods, or run again with the new documents"
            )
        if not self._place.is_file():
            with contextlib.suppress(UserError):  # another process was first
                self.source.value.copy_to(self._place)
        return self.parts

    @property
    def source(self) -> Stage:
        """The stage that is copied: of all users, so that no forgotten one comes back from the data."""
        return self._data if self._unlimited is None or self._fixed else self._unlimited

    @cached_property
    def _fixed(self) -> str | None:
        """The stage that has vectors of the run's documents alone; None: there is none."""
        for stage in _used(self._nodes):
            held = stage.value
            if isinstance(held, Ragged) or (isinstance(held, dict) and "documents" in held):
                return stage.label
        return None

    @property
    def whole(self) -> Mapping[str, Any] | None:
        """The parts over the documents of all users; None: the run has no limit, or cannot take them in."""
        return self._whole

    @cached_property
    def _whole(self) -> Mapping[str, Any] | None:
        return None if self._unlimited is None or self._fixed else self._over(self._unlimited)

    @property
    def log(self) -> Path:
        """The file of the log of remarks, beside the copy."""
        return self._place.with_name(REMARKS)

    @property
    def data(self) -> str:
        """The hash of what the run's store holds."""
        return self._data.value.content

    @cached_property
    def _place(self) -> Path:
        if self._file is not None:
            return self._file
        folder = Path(tempfile.mkdtemp(prefix="pbr_jax-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder / "store.sqlite"

    @cached_property
    def parts(self) -> Mapping[str, Any]:
        """The parts over the copy. What was trained stays as it was."""
        return self._over(constant("corpus", Store(self._place)))

    def _over(self, store: Node) -> Mapping[str, Any]:
        made: dict[int, Node] = {}
        return _Values(
            {name: substituted(node, self._data, store, made) for name, node in self._nodes.items()}
        )


def _used(nodes: Mapping[str, Node]) -> Iterator[Stage]:
    """The stages whose values these nodes compute with."""
    for node in nodes.values():
        if isinstance(node, Stage):
            yield node
        else:
            yield from _used(node.needs)


def _stage(node: Node) -> Stage:
    if not isinstance(node, Stage):
        raise TypeError(f"{node.name} is not kept on disk")
    return node
