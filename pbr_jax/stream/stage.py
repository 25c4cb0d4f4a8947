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

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import seconds_of
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, Stage, Value, builds_nodes
from pbr_jax.options import Generate, Learner, Stream
from pbr_jax.stages import language_model
from pbr_jax.stages.answers import documents_in_prompt
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import slots
from pbr_jax.stages.run import Run, enable_compilation_cache
from pbr_jax.stream.arrival import arrivals, is_drawn
from pbr_jax.stream.blocks import KINDS, LEARNED, PROTOCOLS, Making, part
from pbr_jax.stream.blocks import Block as Block
from pbr_jax.stream.outputs import Outputs
from pbr_jax.system import System


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
) -> Making:
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
