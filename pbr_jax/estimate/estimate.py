"""Prompts, tokens and operations of every stage that a run has yet to make and that asks a model.

A stage that only asks is rehearsed: its own code runs, with models that count (`llm.counting`). What another
model would have to make before, such as a dense ranking, is drawn by lot, and the row says so. Rankings that
take no model, such as BM25's, are made as the run would make them, and are found by it.
"""

import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from pbr_jax import llm as language_models
from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import UserError
from pbr_jax.corpus import vectors
from pbr_jax.estimate import standins, trainings
from pbr_jax.estimate.sizes import Row, asked, encoded
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Node, Stage, Value
from pbr_jax.graph.lists import stages, substituted
from pbr_jax.llm import Counting
from pbr_jax.pipeline import Tally
from pbr_jax.stages.run import Run, chunks
from pbr_jax.text.encode import TextEncoder

_REHEARSED = ("generate", "likelihood", "feedback", "judge", "profile")


def estimate(plan: Plan) -> list[Row]:
    """A row for each model that a stage asks, in the order of the stages. Finished stages are left out."""
    counting: dict[str, Counting] = {}
    return list(
        chain.from_iterable(
            _rows(plan.run, stage, label, counting)
            for label, stage in stages(plan.last).items()
            if stage.seconds is None and any(map(standins.is_model, standins.in_memory(stage)))
        )
    )


def _rows(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Iterator[Row]:
    try:
        yield from _known(run, stage, label, counting)
    except LookupError as waiting:
        yield Row(label, "", note=f"not counted: it waits for {waiting.args[0]}")
    except UserError as error:
        yield Row(label, "", note=f"not counted: {error}")


def _known(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Iterator[Row]:
    if stage.name in ("embed", "token_states", "query_states"):
        yield _texts(run, stage, label)
    elif stage.name == "rank":
        yield from _ranking(run, stage, label, counting)
    elif stage.name == "retriever":
        yield trainings.retriever_row(run, stage, label, _encoder(stage))
    elif stage.name in (*_REHEARSED, "generator", "purple"):
        yield from _asking(run, stage, label, counting)
    else:
        yield Row(label, "", note="not counted")


def _asking(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Iterator[Row]:
    """Stages whose language models are replaced by counting ones."""
    models, needs = _counted(stage, counting)
    if stage.name == "generator":
        values, drawn = standins.values(run, stage, {n: v for n, v in needs.items() if n != "model"})
        values["model"] = stage.needs["model"].value
        yield trainings.generator_row(stage, label, values, run.config.llm, trainings.BY_LOT * drawn)
        return
    if stage.name == "purple":
        wanted = ("store", "ranked", "write")
        values, drawn = standins.values(run, stage, {name: needs[name] for name in wanted})
        ((_, options),) = standins.language_models(stage).values()
        (counter,) = models.values()
        yield trainings.reward_row(stage, label, values, options, counter, trainings.BY_LOT * drawn)
        return
    values, drawn = standins.values(run, stage, needs)
    before = _counts(models)
    with tempfile.TemporaryDirectory(prefix="pbr_jax-") as folder:
        stage.make(Path(folder), values)
    yield from _new(stage, label, models, before, trainings.BY_LOT * drawn)


def _counts(models: Mapping[str, Counting]) -> dict[str, tuple[int, int]]:
    return {key: (len(one.scored), len(one.written)) for key, one in models.items()}


def _new(
    stage: Stage,
    label: str,
    models: Mapping[str, Counting],
    before: Mapping[str, tuple[int, int]],
    note: str,
) -> list[Row]:
    """What each model of a stage was asked since; of those that only counted tokens nothing."""
    rows = []
    for key, (_, options) in standins.language_models(stage).items():
        scored, written = before[key]
        rows.append(asked(label, options, models[key].scored[scored:], models[key].written[written:], note))
    return [row for row in rows if row.prompts] or rows[:1]


def _counted(stage: Stage, counting: dict[str, Counting]) -> tuple[dict[str, Counting], dict[str, Node]]:
    """The counting models of a stage by the keys of those that they stand for, and its needs with them."""
    needs, models = dict(stage.needs), dict[str, Counting]()
    for key, (node, options) in standins.language_models(stage).items():
        # One that has yet to be tuned has no answers in the cache.
        known = not node.needs
        models[key] = counting.setdefault(key, language_models.counting(options, known=known))
        new, made = _constant(node.name, models[key], key), dict[int, Node]()
        needs = {name: substituted(need, node, new, made) for name, need in needs.items()}
    return models, needs


def _constant(name: str, model: Counting, of: str) -> Value:
    return Value(name, (), {}, lambda: model, identity=lambda: f"counting for {of}")


def _ranking(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Iterator[Row]:
    """The queries that an encoder reads, and what language models are asked for expansions and choices."""
    store, questions = stage.needs["store"].value, stage.options[0]
    examples = list(questions.read(store))
    if standins.encoders(stage):
        yield encoded(f"{label}: queries", _encoder(stage), (one.query for one in examples), "query")
    models, needs = _counted(stage, counting)
    if models:
        wanted = {name: needs[name] for name in ("expand", "select")}
        values, _ = standins.values(run, stage, wanted)
        tally, before = Tally(), _counts(models)
        expand, select = (values[name](tally) for name in wanted)
        drawn = standins.Drawn(run, stage, chosen=False)
        for some in chunks(examples):
            select(some, expand(some), list(drawn.read(store, some)))
        yield from _new(stage, label, models, before, trainings.BY_LOT)
    if others := [n.name for n in standins.in_memory(stage) if n.name in standins.MODELS]:
        yield Row(label, ", ".join(others), note="not counted")


def _texts(run: Run, stage: Stage, label: str) -> Row:
    """What an encoder reads of all documents, or of the queries of some questions."""
    encoder, store = _encoder(stage), stage.needs["store"].value
    if stage.name == "query_states":
        texts = (example.query for example in stage.options[1].read(store))
        return encoded(label, encoder, texts, "query", most=stage.options[0])
    texts = (text for _, text in store.texts())
    if stage.name == "token_states":
        return encoded(label, encoder, texts, "document", most=stage.options[0])
    known = set() if stage.needs["encoder"].needs else _vectors(encoder)
    return encoded(label, encoder, (t for t in texts if vectors.digest(t) not in known), "document")


def _vectors(encoder: TextEncoder) -> set[bytes]:
    """The digests of documents whose vectors are there (`corpus.vectors`)."""
    name = f"{encoder.vectors_key('document')[:32]}-{encoder.dim}"
    file = cache_folder() / "vectors" / name / "digests"
    data = file.read_bytes() if file.is_file() else b""
    size = len(vectors.digest(""))
    return {data[at : at + size] for at in range(0, len(data) - size + 1, size)}


def _encoder(stage: Stage) -> TextEncoder:
    """The encoder of a stage as it comes: a tuned one reads the same tokens."""
    return TextEncoder(standins.encoders(stage)[0])
