"""Streams: questions in blocks, each answered with the present state before methods learn from it.

A stream is one stage, however many blocks it has. Its folder holds

    blocks/00000/                       rankings, answers and likelihoods of the questions of a block
    blocks/00000/retrieve.000000.jsonl  what the learner in that slot observed, a file for every 64 questions
    states/00001/retrieve/              the state of that learner after the block; the first is another stage

and the files of all blocks put together. A stream that was killed continues in the part that was under way.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax import terminal
from pbr_jax.artefacts import obtain_part, part_seconds
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store
from pbr_jax.files import private_folder, write_lines
from pbr_jax.graph import Bound, Node, Slot, Stage, Value
from pbr_jax.options import Generate, Learner, Stream
from pbr_jax.parts import language_model, programs
from pbr_jax.parts.answers import Answers, documents_in_prompt, keep_answers
from pbr_jax.parts.generator import generator
from pbr_jax.parts.likelihood import Likelihoods, keep_likelihoods
from pbr_jax.parts.rankings import Rankings, keep_rankings, slots
from pbr_jax.parts.run import Run, enable_compilation_cache, metered, read_tally, write_tally
from pbr_jax.pipeline import Ranking, Tally
from pbr_jax.system import System
from pbr_jax.types import Example, UserError

_PART = 64  # questions that are observed together
_KINDS = {"ranked": Rankings, "answered": Answers, "scored": Likelihoods}


class Block(NamedTuple):
    """Questions that were answered, as a learner sees them; of each list, one value a question.

    `answers` and `likelihoods` are as `parts.answers.Answers` and `parts.likelihood.Likelihoods` say, and
    empty where there are none. Where the learner is not `supervised`, examples have neither targets nor
    relevant documents, and there are no likelihoods. `observations` are the learner's own, in `learn`.
    """

    examples: list[Example]
    rankings: list[Ranking]
    answers: list[dict[str, Any]]
    likelihoods: list[dict[str, Any]]
    observations: list[Any]


def learners(config: Config) -> list[Learner]:
    """The methods that learn from a stream. Raises UserError where there are some, and no stream."""
    found = [method for method in config.methods if isinstance(method, Learner)]
    if found and config.stream.size is None:
        raise UserError(
            f"{found[0].section}.method is {found[0].method}, which learns from a stream of questions; set "
            "stream.size to the number of questions after which it learns"
        )
    return found


def arrivals(options: Stream, seed: int, count: int) -> np.ndarray:
    """The places of so many questions, int64 [count], in the order in which they arrive."""
    if options.order == "released":
        return np.arange(count)
    return np.random.default_rng([seed, 4]).permutation(count)


def blocks(options: Stream, seed: int, count: int) -> list[int] | None:
    """The number of the block in which each of so many questions arrives; None: no stream."""
    if options.size is None:
        return None
    found = np.empty(count, np.int64)
    found[arrivals(options, seed, count)] = np.arange(count) // options.size
    return found.tolist()


def stream(run: Run, config: Config, method: Generate | None, scored: bool) -> dict[str, Node]:
    """What is read from the stage of a config's stream: `ranked`, and `answered` and `scored` if wanted."""
    needs: dict[str, Node] = {"store": run.data, "write": language_model.writer(run), **slots(run)}
    needs |= {} if method is None else {"generate": Slot(method, run)}
    needs |= {"llm": generator(run)} if scored else {}
    seed = 0 if config.stream.order == "released" else config.seed
    options = (config.stream, seed, config.collaboration, documents_in_prompt(run))
    stage = Stage("stream", options, needs, _make, Path)
    wanted = {"ranked": True, "answered": method is not None, "scored": scored}
    return {kind: Value(kind, (kind,), {"streamed": stage}, _read) for kind in _KINDS if wanted[kind]}


def seconds(streamed: Path, number: int) -> dict[str, float | None]:
    """What answering and observing a block took, and learning from it; None where its state is not kept."""
    parts = {"answer": _part(streamed, "blocks", number), "learn": _part(streamed, "states", number + 1)}
    return {name: part_seconds(path) for name, path in parts.items()}


def _part(folder: Path, kind: str, number: int) -> Path:
    return folder / kind / f"{number:05}"


def _read(kind: str, *, streamed: Path) -> Any:
    return _KINDS[kind](streamed)


def last(stage: Node) -> dict[str, Node]:
    """The slots of a stream's learners with their last states, and the `store` that goes with these."""
    needs = stage.needs.items()
    own = {n: slot for n, slot in needs if isinstance(slot, Slot) and isinstance(slot.method, Learner)}
    found: dict[str, Node] = {
        name: Value(name, (name,), {"slot": slot, "streamed": stage}, _last) for name, slot in own.items()
    }
    methods = {name: slot.method for name, slot in own.items()}
    return {
        **found,
        "store": Value("corpus", (methods,), {"store": stage.needs["store"], "streamed": stage}, _corpus),
    }


def _last(name: str, *, slot: Bound, streamed: Path) -> Bound:
    return replace(slot, values={**slot.values, "state": max((streamed / "states").iterdir()) / name})


def _corpus(methods: Mapping[str, Any], *, store: Store, streamed: Path) -> Store:
    state = max((streamed / "states").iterdir())
    for name, method in methods.items():
        store = method.corpus(store, state / name)
    return store


def _make(
    folder: Path,
    options: Stream,
    seed: int,
    collaboration: str,
    documents: int,
    *,
    store: Store,
    **values: Any,
) -> None:
    enable_compilation_cache()
    examples = list(store.examples())
    order, size = arrivals(options, seed, len(examples)), options.size or len(examples)
    bound = {name: slot for name, slot in values.items() if isinstance(slot, Bound)}
    learners = {name: slot for name, slot in bound.items() if isinstance(slot.method, Learner)}
    for part in ("blocks", "states"):  # of a stream that was finished and damaged: what is whole of it stays
        left = folder.with_suffix("") / part
        if left.is_dir() and not (folder / part).exists():
            os.replace(left, folder / part)
    _Making(
        folder,
        [[examples[i] for i in order[start : start + size]] for start in range(0, len(examples), size)],
        learners,
        {"store": store, **values},
        System({"store": store, **values}, collaboration=collaboration, documents=documents),
        options.keep,
    ).run()


@dataclass(frozen=True)
class _Making:
    """A stream that is under way in a folder."""

    folder: Path
    blocks: list[list[Example]]
    learners: Mapping[str, Any]  # `graph.Bound` by slot
    parts: Mapping[str, Any]  # of a system
    system: System  # with the slots that do not learn, which all blocks share
    keep: int | None

    def run(self) -> None:
        """Answers all blocks and learns from them, as far as that is not there."""
        first, count = self._first(), len(self.blocks)
        if first:
            terminal.err(f"stream: goes on after {first} of {count} blocks")
        for number in terminal.bar(range(first, count), desc="blocks"):
            with metered(self.folder):
                obtain_part(self._block(number), partial(self._answer, number))
                obtain_part(self._states(number + 1), partial(self._learn, number))
            if self.keep is not None:
                shutil.rmtree(self._states(number + 1 - self.keep), ignore_errors=True)
            programs.release()
        folders = [self._block(number) for number in range(count)]
        for file in (records.file for records in _KINDS.values()):
            if (folders[0] / file).exists():
                write_lines(self.folder / file, ((block / file).read_text("utf-8") for block in folders))
        total = Tally()
        for tally in map(read_tally, folders):
            total.counts.update(tally.counts)
            for part, spent in tally.seconds.items():
                total.seconds[part] = total.seconds.get(part, 0.0) + spent
        write_tally(total, self.folder)

    def _first(self) -> int:
        """The number of the latest whole state from which all that is missing or damaged can be made."""
        count = len(self.blocks)
        there = [n for n in range(1, count + 1) if self._states(n).exists()]
        whole = [n for n in there if part_seconds(self._states(n)) is not None]
        lacking = [n for n in range(count) if part_seconds(self._block(n)) is None]
        bound = min([count, *lacking, *set(there).difference(whole)])
        return max([0, *(n for n in whole if n <= bound)])

    def _block(self, number: int) -> Path:
        return _part(self.folder, "blocks", number)

    def _states(self, number: int) -> Path:
        return _part(self.folder, "states", number)

    def _present(self, number: int) -> Mapping[str, Any]:
        """The learners with the states by which the block of this number is answered."""
        if number == 0:
            return self.learners
        states = {slot: {"state": self._states(number) / slot} for slot in self.learners}
        return {
            slot: replace(own, values={**own.values, **states[slot]}) for slot, own in self.learners.items()
        }

    def _store(self, number: int) -> Store:
        """The store of the documents that this block's rankings are of."""
        store = self.parts["store"]
        for learner in self._present(number).values():
            store = learner.method.corpus(store, learner.values["state"])
        return store

    def _answer(self, number: int, out: Path) -> None:
        """Answers a block with the present states, and then observes it."""
        present, ranked, examples = self._present(number), Rankings(out), self.blocks[number]
        system = self.system.replaced({**present, "store": self._store(number)})
        system.tally.counts.clear()
        system.tally.seconds.clear()
        keep_rankings(out, examples, system)
        if "generate" in self.parts:
            keep_answers(out, examples, ranked, system)
        if "llm" in self.parts:
            keep_likelihoods(out, examples, ranked, system)
        for slot, learner in present.items():
            block = self._read(number, slot, out)
            for start in range(0, len(examples), _PART):
                file = out / f"{slot}.{start:06}.jsonl"
                if not file.exists():
                    some = Block._make(values[start : start + _PART] for values in block)
                    write_lines(file, _observed(learner, some))

    def _learn(self, number: int, out: Path) -> None:
        for slot, learner in self._present(number).items():
            past = _Blocks(number + 1, partial(self._read, slot=slot))
            private_folder(out / slot)
            learner.method.learn(past, out=out / slot, **learner.values)
            if not any((out / slot).iterdir()):
                raise UserError(
                    f"{_name(learner)}: learn wrote nothing after block {number}; write the next state into "
                    "the folder out, or copy the files of state there where nothing was learned"
                )

    def _read(self, number: int, slot: str, folder: Path | None = None) -> Block:
        """A block as the learner in a slot sees it; `folder`: where it is under way."""
        folder, examples = folder or self._block(number), self.blocks[number]
        rankings = list(Rankings(folder).read(self._store(number), examples))
        answers, likelihoods = (
            list(kind(folder).records(examples)) if (folder / kind.file).exists() else []
            for kind in (Answers, Likelihoods)
        )
        files = sorted(folder.glob(f"{slot}.*.jsonl"))
        observations = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        if self.learners[slot].method.supervised:
            return Block(examples, rankings, answers, likelihoods, observations)
        blind = [replace(e, target=None, alternatives=(), relevant=()) for e in examples]
        return Block(blind, rankings, answers, [], observations)


class _Blocks(Sequence[Block]):
    """The first blocks of a stream, each read when it is asked for."""

    def __init__(self, count: int, read: Callable[[int], Block]) -> None:
        self._numbers, self._read = range(count), read

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        numbers = self._numbers[place]
        return self._read(numbers) if isinstance(numbers, int) else [*map(self._read, numbers)]


def _observed(learner: Any, block: Block) -> list[str]:
    """What a learner observes in a part of a block, a line of JSON for each question."""
    values = learner.method.observe(block, **learner.values)
    if len(values) != len(block.examples):
        raise UserError(
            f"{_name(learner)}: observe gave {len(values)} values for {len(block.examples)} questions, want "
            "one for each"
        )
    try:
        return [json.dumps(value, allow_nan=False) + "\n" for value in values]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{_name(learner)}: what observe gave is no JSON ({error}); give numbers, texts, lists, objects"
        ) from error


def _name(learner: Any) -> str:
    return f"{learner.method.section}.method {learner.method.method}"
