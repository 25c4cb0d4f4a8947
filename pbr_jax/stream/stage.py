"""Streams: questions in blocks. Each block is answered with the current state before methods learn from it.

A stream is one stage, for any number of blocks. Its folder contains::

    blocks/00000/                       rankings, answers and likelihoods of the questions of a block
    blocks/00000/retrieve.000000.jsonl  observations of the learner in that slot, a file per 64 questions
    states/00001/retrieve/              the learner's state that answers block 1; the initial state is a
                                        separate stage
    learned.json                        the reports of the learners on the whole stream

and the combined files of all blocks. With folds of users instead of blocks, `observed/` contains the
observations of learners while the initial state answers, and `states/00000` is learned from all folds except
fold 0. The state after all blocks or folds is a separate stage, which is computed when it is first needed
(`pbr_jax.open`). After an interruption, a stream continues with the unfinished part.
"""

import abc
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.files import private_folder, write_text, written
from pbr_jax.base.types import Example, UserError
from pbr_jax.cache.artefacts import is_whole, obtain_part, seconds_of
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, Stage, Value, builds_nodes
from pbr_jax.options import Generate, Learner, Stream
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import language_model, programs
from pbr_jax.stages.answers import Answers, Likelihoods, documents_in_prompt, keep_answers, keep_likelihoods
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import Rankings, keep_rankings, slots
from pbr_jax.stages.run import Run, enable_compilation_cache, metered, read_tally, total, write_tally
from pbr_jax.stream.arrival import arrivals, is_drawn
from pbr_jax.stream.outputs import Outputs
from pbr_jax.system import System

KINDS = {"ranked": Rankings, "answered": Answers, "scored": Likelihoods}
LEARNED = "learned.json"  # what learners report, by slot
_PART = 64  # questions that are observed together


def learners(config: Config) -> list[Learner]:
    """The methods that learn from a stream. Raises UserError if there are any, but no stream."""
    found = [method for method in config.methods if isinstance(method, Learner)]
    if found and not config.stream.active:
        raise UserError(
            f"{found[0].section}.method is {found[0].method}, which learns from a stream of questions; set "
            "stream.size to the number of questions after which it learns"
        )
    return found


@builds_nodes
def streamed(run: Run, config: Config, method: Generate | None, scored: bool) -> Outputs:
    """What the questions get in a config's stream, before the methods learn from them."""
    needs: dict[str, Node] = {"store": run.data, "write": language_model.writer(run), **slots(run)}
    needs |= {} if method is None else {"generate": Slot(method, run)}
    needs |= {"llm": generator(run)} if scored else {}
    seed = config.seed if is_drawn(config.stream) else 0
    options = (config.stream, seed, config.collaboration, documents_in_prompt(run))
    stage = Stage("stream", options, needs, _make, Path)
    wanted = {"ranked": True, "answered": method is not None, "scored": scored}
    return Outputs(
        **{kind: Value(kind, (kind,), {"streamed": stage}, _read) for kind in KINDS if wanted[kind]}
    )


def seconds(options: Stream, streamed: Path, number: int) -> dict[str, float | None]:
    """Seconds for answering (and observing) a block, and for learning: after a block, or before a fold.
    None: nothing was learned, or the state was not kept."""
    learned = number + (options.protocol == "prequential")
    parts = {"answer": part(streamed, "blocks", number), "learn": part(streamed, "states", learned)}
    return {name: seconds_of(path) for name, path in parts.items()}


def reported(streamed: Path) -> dict[str, dict[str, float]]:
    """The reports of a stream's learners, by slot."""
    return json.loads((streamed / LEARNED).read_text(encoding="utf-8"))


def _read(kind: str, *, streamed: Path) -> Any:
    return KINDS[kind](streamed)


def ranked_store(stage: Stage) -> Node:
    """The node of the store that contains the documents of a stream's rankings."""
    methods = {name: slot.method for name, slot in _learning(stage).items()}
    return Value("ranked corpus", (methods,), {"store": stage.needs["store"], "streamed": stage}, _ranked)


def last(stage: Stage) -> dict[str, Node]:
    """The slots of a stream's learners with the state after all questions, and the `store` for this
    state."""
    own, store = _learning(stage), stage.needs["store"]
    needs = {"store": store, "streamed": stage, **own}
    learned = Stage("stream_last", stage.options, needs, _make_last, Path, label="last state")
    found: dict[str, Node] = {
        name: Value(name, (name,), {"slot": slot, "learned": learned}, _last) for name, slot in own.items()
    }
    methods = {name: slot.method for name, slot in own.items()}
    return {**found, "store": Value("corpus", (methods,), {"store": store, "learned": learned}, _corpus)}


def _learning(stage: Stage) -> dict[str, Slot]:
    needs = stage.needs.items()
    return {n: slot for n, slot in needs if isinstance(slot, Slot) and isinstance(slot.method, Learner)}


def _last(name: str, *, slot: Bound, learned: Path) -> Bound:
    return replace(slot, values={**slot.values, "state": learned / name})


def _corpus(methods: Mapping[str, Any], *, store: Store, learned: Path) -> Store:
    for name, method in methods.items():
        store = method.corpus(store, learned / name)
    return store


def _ranked(methods: Mapping[str, Any], *, store: Store, streamed: Path) -> Store:
    states = sorted(path for path in (streamed / "states").glob("*") if path.is_dir())
    return _corpus(methods, store=store, learned=states[-1]) if states else store


def _make(folder: Path, options: Stream, seed: int, *rest: Any, **values: Any) -> None:
    enable_compilation_cache()
    for kind in (
        "blocks",
        "observed",
        "states",
    ):  # of a damaged stream that was finished: what is whole stays
        left = folder.with_suffix("") / kind
        if left.is_dir() and not (folder / kind).exists():
            os.replace(left, folder / kind)
    _making(folder, options, seed, *rest, **values).run()


def _make_last(folder: Path, options: Stream, seed: int, *rest: Any, streamed: Path, **values: Any) -> None:
    enable_compilation_cache()
    making = _making(streamed, options, seed, *rest, **values)
    making.learn(len(making.blocks), folder)


def _making(
    folder: Path,
    options: Stream,
    seed: int,
    collaboration: str,
    documents: int,
    *,
    store: Store,
    **values: Any,
) -> "Making":
    examples = list(store.examples())
    found = arrivals(options, seed, examples)
    assert found is not None
    return PROTOCOLS[options.protocol](
        folder,
        [[examples[place] for place in block] for block in found.blocks],
        {n: v for n, v in values.items() if isinstance(v, Bound) and isinstance(v.method, Learner)},
        {"store": store, **values},
        System({"store": store, **values}, collaboration=collaboration, documents=documents),
        options.keep,
    )


# -- blocks under way ----------------------------------------------------------------------------------


class Block(NamedTuple):
    """Answered questions as a learner sees them. Each list has one value per question.

    `answers` and `likelihoods` have the format of `stages.answers.Answers` and
    `stages.answers.Likelihoods`, and are empty if there are none. Unless the learner is `supervised`,
    examples have neither targets nor relevant documents, and there are no likelihoods; in `report` they are
    present. `observations` are those of the learner, in `learn` and `report`. Each list is read from disk
    when it is first accessed.
    """

    examples: Sequence[Example]
    rankings: Sequence[Ranking]
    answers: Sequence[dict[str, Any]]
    likelihoods: Sequence[dict[str, Any]]
    observations: Sequence[Any]


class _Later(Sequence[Any]):
    """A list that is read when it is first looked into. After every block a learner may go through all that
    came before, and what it does not need there, such as all rankings, is not read."""

    def __init__(self, read: Callable[[], list[Any]]) -> None:
        self._read = read

    @cached_property
    def _values(self) -> list[Any]:
        return self._read()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        return self._values[place]


@dataclass(frozen=True)
class Making(abc.ABC):
    """A stream that is under way in a folder. A subclass is a protocol.

    State `number` is the one by which the block of this number is answered; that after the last block's
    is learned from all of them.
    """

    folder: Path
    blocks: list[list[Example]]
    learners: Mapping[str, Any]  # `graph.Bound` by slot
    parts: Mapping[str, Any]  # of a system
    system: System  # with the slots that do not learn, which all blocks share
    keep: int | None

    def run(self) -> None:
        """Answers all blocks and learns from them, as far as that is not there."""
        self._pass()
        folders = [self.block(number) for number in range(len(self.blocks))]
        for name in (records.file for records in KINDS.values()):
            if (folders[0] / name).exists():
                with written(self.folder / name) as file:
                    file.writelines((block / name).read_text("utf-8") for block in folders)
        write_tally(total(map(read_tally, folders)), self.folder)
        self._report()

    @abc.abstractmethod
    def _pass(self) -> None:
        """Answers all blocks that are not there."""

    def observed(self, number: int) -> Path:
        """The folder of a block with what learners observed in it."""
        return part(self.folder, "blocks", number)

    def previous(self, number: int) -> Mapping[str, Any]:
        """The learners with the states from which state `number` is learned."""
        return self.present(number - 1)

    def taught(self, number: int) -> Sequence[int]:
        """The blocks from which state `number` is learned."""
        return range(number)

    def present(self, number: int) -> Mapping[str, Any]:
        """The learners with state `number`."""
        states = {slot: {"state": self.states(number) / slot} for slot in self.learners}
        return {
            slot: replace(own, values={**own.values, **states[slot]}) for slot, own in self.learners.items()
        }

    def block(self, number: int) -> Path:
        """The folder of a block's answers."""
        return part(self.folder, "blocks", number)

    def states(self, number: int) -> Path:
        """The folder of state `number`."""
        return part(self.folder, "states", number)

    def learn(self, number: int, out: Path) -> None:
        """Learns state `number` into the folder `out`."""
        previous, blocks = self.previous(number), self.taught(number)
        store = self._store(previous)
        for slot, learner in previous.items():
            past = _Blocks(blocks, partial(self._read, slot=slot, store=store))
            private_folder(out / slot)
            learner.method.learn(past, out=out / slot, **learner.values)
            if not any((out / slot).iterdir()):
                raise UserError(
                    f"{_name(learner)}: learn wrote nothing after block {blocks[-1]}; write the next state "
                    "into the folder out, or copy the files of state there where nothing was learned"
                )

    def _store(self, present: Mapping[str, Any]) -> Store:
        """The store of the documents that rankings by these states, and by earlier ones, are of."""
        store = self.parts["store"]
        for learner in present.values():
            store = learner.method.corpus(store, learner.values["state"])
        return store

    def _answer(self, number: int, present: Mapping[str, Any], out: Path) -> None:
        """Answers a block by these states."""
        ranked, examples = Rankings(out), self.blocks[number]
        system = self.system.replaced({**present, "store": self._store(present)})
        system.tally.counts.clear()
        system.tally.seconds.clear()
        keep_rankings(out, examples, system)
        if "generate" in self.parts:
            keep_answers(out, examples, ranked, system)
        if "llm" in self.parts:
            keep_likelihoods(out, examples, ranked, system)

    def _observe(self, number: int, present: Mapping[str, Any], out: Path) -> None:
        """Answers a block by these states, and then observes it."""
        self._answer(number, present, out)
        store, count = self._store(present), len(self.blocks[number])
        for slot, learner in present.items():
            block = self._read(number, slot, store, folder=out)
            for start in range(0, count, _PART):
                file = out / f"{slot}.{start:06}.jsonl"
                if not file.exists():
                    some = Block._make(values[start : start + _PART] for values in block)
                    with written(file) as lines:
                        lines.writelines(_observed(learner, some))

    def _read(
        self, number: int, slot: str, store: Store, *, folder: Path | None = None, blind: bool = True
    ) -> Block:
        """A block as the learner in a slot sees it. `folder`: where it is under way; `blind`: unless the
        learner is supervised, without what the data says of the answers."""
        place, examples = folder or self.observed(number), self.blocks[number]
        rankings = _Later(lambda: list(Rankings(place).read(store, examples)))
        answers, likelihoods = (
            _Later(lambda kind=kind: list(kind(place).records(examples)))
            if (place / kind.file).exists()
            else []
            for kind in (Answers, Likelihoods)
        )
        files = sorted(place.glob(f"{slot}.*.jsonl"))
        observations = _Later(
            lambda: [json.loads(line) for file in files for line in file.read_text().splitlines()]
        )
        if not blind or self.learners[slot].method.supervised:
            return Block(examples, rankings, answers, likelihoods, observations)
        unanswered = [replace(e, target=None, alternatives=(), relevant=()) for e in examples]
        return Block(unanswered, rankings, answers, [], observations)

    def _report(self) -> None:
        """Keeps what learners report of the whole stream."""
        count, found = len(self.blocks), {}
        for slot, learner in self.present(count - 1).items():
            store = self._store(self.present(count - 1))
            blocks = _Blocks(range(count), partial(self._read, slot=slot, store=store, blind=False))
            found[slot] = _reported(learner, blocks)
        write_text(self.folder / LEARNED, json.dumps(found))


class Prequential(Making):
    """Each block is answered before it is learned from."""

    def present(self, number: int) -> Mapping[str, Any]:
        return self.learners if number == 0 else super().present(number)

    def _pass(self) -> None:
        first, count = self._first(), len(self.blocks)
        if first:
            terminal.err(f"stream: goes on after {first} of {count} blocks")
        for number in terminal.bar(range(first, count), desc="blocks"):
            with metered(self.folder):
                obtain_part(self.block(number), partial(self._observe, number, self.present(number)))
                if number + 1 < count:
                    obtain_part(self.states(number + 1), partial(self.learn, number + 1))
            if self.keep is not None and number + 1 < count:
                shutil.rmtree(self.states(number + 1 - self.keep), ignore_errors=True)
            programs.release()

    def _first(self) -> int:
        """The number of the latest whole state from which all that is missing or damaged can be made."""
        count = len(self.blocks)
        there = [n for n in range(1, count) if self.states(n).exists()]
        whole = [n for n in there if is_whole(self.states(n))]
        lacking = [n for n in range(count) if not is_whole(self.block(n))]
        bound = min([count, *lacking, *set(there).difference(whole)])
        return max([0, *(n for n in whole if n <= bound)])


class CrossUsers(Making):
    """Each fold is answered by what the other folds have taught.

    Folds are first answered by the first state, and observed; those are the blocks that are learned from.
    """

    def observed(self, number: int) -> Path:
        return part(self.folder, "observed", number)

    def previous(self, number: int) -> Mapping[str, Any]:
        return self.learners

    def taught(self, number: int) -> Sequence[int]:
        return [n for n in range(len(self.blocks)) if n != number]

    def _pass(self) -> None:
        count = len(self.blocks)
        if done := sum(is_whole(self.block(number)) for number in range(count)):
            terminal.err(f"stream: goes on after {done} of {count} folds")
        for number in terminal.bar(range(count), desc="folds observed"):
            with metered(self.folder):
                obtain_part(self.observed(number), partial(self._observe, number, self.learners))
        for number in terminal.bar(range(count), desc="folds"):
            kept = self.keep is None or number >= count - self.keep
            with metered(self.folder):
                if kept or not is_whole(self.block(number)):
                    obtain_part(self.states(number), partial(self.learn, number))
                obtain_part(self.block(number), partial(self._answer, number, self.present(number)))
            if not kept:
                shutil.rmtree(self.states(number), ignore_errors=True)
            programs.release()

    def _store(self, present: Mapping[str, Any]) -> Store:
        if (store := super()._store(present)) is not self.parts["store"]:
            raise UserError(
                "stream.protocol is cross_users, and a method keeps a corpus of its own, which would be "
                "another one for each fold; take prequential"
            )
        return store


PROTOCOLS = {"prequential": Prequential, "cross_users": CrossUsers}


class _Blocks(Sequence[Block]):
    """Blocks of a stream, each read when it is asked for."""

    def __init__(self, numbers: Iterable[int], read: Callable[[int], Block]) -> None:
        self._numbers, self._read = [*numbers], read

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        numbers = self._numbers[place]
        return self._read(numbers) if isinstance(numbers, int) else [*map(self._read, numbers)]


def part(folder: Path, kind: str, number: int) -> Path:
    """The folder of a part of a stream's folder."""
    return folder / kind / f"{number:05}"


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


def _reported(learner: Any, blocks: Sequence[Block]) -> dict[str, float]:
    """What a learner reports. Raises UserError for what is no finite number by its name."""
    values = learner.method.report(blocks, **learner.values)
    try:
        numbers = {str(name): float(value) for name, value in values.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{_name(learner)}: report gave {values!r:.80}, want numbers by names") from error
    wrong = [name for name, number in numbers.items() if not np.isfinite(number)]
    if wrong:
        raise UserError(
            f"{_name(learner)}: report gave {numbers[wrong[0]]} as {wrong[0]}, want finite numbers; "
            "leave out what is not known"
        )
    return numbers


def _name(learner: Any) -> str:
    return f"{learner.method.section}.method {learner.method.method}"
