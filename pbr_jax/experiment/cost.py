"""What a run has yet to ask of its models: prompts, tokens and operations, before anything is asked.

A stage that only asks is rehearsed: its own code runs with models that count (`llm.Counting`). Where another
model would first have to rank, documents are drawn by lot, and the row says so. Rankings that need no model,
such as BM25's, are made and kept as in the run. The steps of trainings are not counted, but what PURPLE's
asks for its rewards is.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os.path import basename, normpath
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pbr_jax import llm as language_models
from pbr_jax.base.files import cache_folder
from pbr_jax.base.tables import Table
from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus import vectors
from pbr_jax.corpus.store import Store
from pbr_jax.experiment import flops
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Node, Slot, Stage, Value
from pbr_jax.graph.lists import stages, substituted
from pbr_jax.llm import Counting, is_t5
from pbr_jax.methods import neighbours, retrieve, select
from pbr_jax.methods.expand import Nothing
from pbr_jax.models import causal_lm, t5
from pbr_jax.models.pretrained import locate
from pbr_jax.models.sentence_folder import Role
from pbr_jax.options import LLM, Encoder
from pbr_jax.pipeline import Pipeline, Ranking, Tally
from pbr_jax.stages.answers import Answers
from pbr_jax.stages.rankings import Rankings, drop_leaks
from pbr_jax.stages.run import Run, chunks
from pbr_jax.system import System
from pbr_jax.text.encode import WINDOW, TextEncoder
from pbr_jax.text.padding import row_sizes
from pbr_jax.train.selection import by_users

_MODELS = ("weights", "reranker", "token encoder")  # values that are models, beside those of the options
_BY_LOT = "documents drawn by lot, until a model has ranked them"

Kind = TypeVar("Kind", LLM, Encoder)
Pairs = Sequence[tuple[int, int]]
"""Tokens of prompts and of what follows them."""


@dataclass(frozen=True)
class Row:
    """What a stage asks of a model.

    `read`: tokens of prompts, texts and targets; `written`: the most tokens that answers may have; `flops`:
    None where the model is a server's; `note`: what is not exact.
    """

    stage: str
    model: str
    prompts: int = 0
    read: int = 0
    written: int = 0
    flops: float | None = None
    note: str = ""


def table(rows: Sequence[Row]) -> str:
    """The rows and their sum, as text."""
    if not rows:
        return "no model is asked: what the run needs is there"

    def cells(row: Row) -> list[str]:
        if not row.model and row.stage != "all":
            return [row.stage, *[""] * 5]
        counts = (f"{count:,}" for count in (row.prompts, row.read, row.written))
        return [row.stage, row.model, *counts, "" if row.flops is None else f"{row.flops:.3g}"]

    counts = (sum(getattr(row, name) for row in rows) for name in ("prompts", "read", "written"))
    total = Row("all", "", *counts, flops=sum(row.flops or 0.0 for row in rows))
    notes = ["What prompts begin with in common is read once by the engine, and counted in full here."]
    for note in dict.fromkeys(row.note for row in rows if row.note):
        notes.append(f"{', '.join(row.stage for row in rows if row.note == note)}: {note}")
    header = ("stage", "model", "prompts", "tokens read", "written, at most", "FLOPs")
    lines = [*map(cells, [*rows, total])]
    return Table("What the run has yet to ask of models", header, lines, notes).text()


def estimate(plan: Plan) -> list[Row]:
    """A row for each model that a stage asks, in the order of the stages. Finished stages are left out."""
    counting: dict[str, Counting] = {}
    rows: list[Row] = []
    for label, stage in stages(plan.last).items():
        if not stage.is_made and any(map(_is_model, _in_memory(stage))):
            try:
                rows += _rows(plan.run, stage, label, counting)
            except LookupError as waiting:
                rows.append(Row(label, "", note=f"not counted: it waits for {waiting.args[0]}"))
            except UserError as error:
                rows.append(Row(label, "", note=f"not counted: {error}"))
    return rows


def _rows(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Iterator[Row]:
    match stage.name:
        case "embed" | "token_states" | "query_states":
            yield _texts(stage, label)
        case "rank":
            yield from _ranking(run, stage, label, counting)
        case "purple":
            yield _rewards(run, stage, label, counting)
        case "generate" | "likelihood" | "feedback" | "judge" | "profile":
            models, needs = _counted(stage, counting)
            values, drawn = _values(run, stage, needs)
            with tempfile.TemporaryDirectory(prefix="pbr_jax-") as folder:
                stage.make(Path(folder), values)
            yield from _new(stage, label, models, _BY_LOT * drawn)
        case _:
            yield Row(label, "", note="not counted")


# -- rows ----------------------------------------------------------------------------------------------


def _asked(stage: str, options: LLM, scored: Pairs, written: Pairs, note: str = "") -> Row:
    """Of targets that a language model scores, and answers that it writes."""
    first, second = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (scored, written))
    done = None
    if options.backend == "jax":
        cost = _operations(options)
        parts = cost.scored(*first.T), cost.prefilled(second[:, 0]), cost.decoded(*second.T)
        done = float(sum(part.sum() for part in parts))
    else:
        note = "; ".join(filter(None, [note, "a server's model"]))
    read, answers = int(first.sum() + second[:, 0].sum()), int(second[:, 1].sum())
    return Row(stage, _base_name(options), len(first) + len(second), read, answers, done, note)


def _base_name(options: LLM | Encoder) -> str:
    return basename(normpath(options.model))


def _operations(options: LLM) -> flops.LanguageModel:
    place = locate(options.model)
    return flops.t5(t5.read_config(place)) if is_t5(place) else flops.causal_lm(causal_lm.read_config(place))


def _encoded(
    stage: str, encoder: TextEncoder, texts: Iterable[str], role: Role, most: int | None = None
) -> Row:
    """Of texts that an encoder makes vectors or token states of; equal ones count once where they come close
    together. `most`: tokens of a text, where that is fewer than the encoder takes."""
    count, done, read, prefix = 0, 0.0, 0, encoder.prefix(role)
    longest = min(most or encoder.settings.max_length, encoder.settings.max_length)
    sizes, texts = np.array(row_sizes(longest)), iter(texts)
    while some := list(dict.fromkeys(islice(texts, WINDOW))):
        tokens = encoder.tokenizer.encode_batch([prefix + text for text in some])
        lengths = np.minimum(np.array([len(ids) for ids in tokens]), longest)
        count, read = count + len(some), read + int(lengths.sum())
        done += flops.bert(encoder.bert_config, sizes[np.searchsorted(sizes, lengths)]).sum()
    return Row(stage, _base_name(encoder.config), count, read, flops=float(done))


def _texts(stage: Stage, label: str) -> Row:
    """What an encoder reads of all documents, or of the queries of some questions."""
    encoder, store = _encoder(stage), stage.needs["store"].value
    if stage.name == "query_states":
        texts = (example.query for example in stage.options[1].read(store))
        return _encoded(label, encoder, texts, "query", most=stage.options[0])
    texts = (text for _, text in store.texts())
    if stage.name == "token_states":
        return _encoded(label, encoder, texts, "document", most=stage.options[0])
    there = set() if stage.needs["encoder"].needs else _vectors(encoder)
    return _encoded(label, encoder, (t for t in texts if vectors.digest(t) not in there), "document")


def _vectors(encoder: TextEncoder) -> set[bytes]:
    """The digests of documents whose vectors are there (`corpus.vectors`)."""
    name = f"{encoder.vectors_key('document')[:32]}-{encoder.dim}"
    file = cache_folder() / "vectors" / name / "digests"
    data = file.read_bytes() if file.is_file() else b""
    size = len(vectors.digest(""))
    return {data[at : at + size] for at in range(0, len(data) - size + 1, size)}


def _encoder(stage: Stage) -> TextEncoder:
    """The encoder of a stage as it comes: a tuned one reads the same tokens."""
    return TextEncoder(_options(stage, Encoder)[0][1])


def _ranking(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Iterator[Row]:
    """The queries that an encoder reads, and what language models are asked for expansions and choices."""
    store, questions = stage.needs["store"].value, stage.options[0]
    examples = list(questions.read(store))
    if _options(stage, Encoder):
        yield _encoded(f"{label}: queries", _encoder(stage), (one.query for one in examples), "query")
    models, needs = _counted(stage, counting)
    if models:
        values, _ = _values(run, stage, {name: needs[name] for name in ("expand", "select")})
        expand, choose = (values[name](Tally()) for name in ("expand", "select"))
        drawn = _Drawn(run, stage, chosen=False)
        for some in chunks(examples):
            choose(some, expand(some), list(drawn.read(store, some)))
        yield from _new(stage, label, models, _BY_LOT)
    if others := [node.name for node in _in_memory(stage) if node.name in _MODELS]:
        yield Row(label, ", ".join(others), note="not counted")


def _rewards(run: Run, stage: Stage, label: str, counting: dict[str, Counting]) -> Row:
    """PURPLE's rewards: as many profiles of each question as every epoch draws, and those that choose the
    step. The prompt of a question's first documents stands for all of its profiles."""
    models, needs = _counted(stage, counting)
    values, drawn = _values(run, stage, {name: needs[name] for name in ("store", "ranked", "write")})
    options, questions, judged, seed = stage.options[:4]
    ((_, llm),), (counter,) = _options(stage, LLM), models.values()
    store = values["store"]
    examples = list(questions.read(store))
    candidates = list(drop_leaks(store, examples, values["ranked"].read(store, examples)))
    several = [i for i, ranking in enumerate(candidates) if len(ranking) > 1]
    _, held = by_users([examples[i].user_id for i in several], options.training.selection, seed)
    epochs, sizes = options.training.epochs, [len(candidates[i]) for i in several]
    profiles = np.array([math.perm(size, min(options.k, size)) for size in sizes], np.float64)
    asks = profiles if options.learns_from == "singles" else np.minimum(epochs * options.rollouts, profiles)
    if options.training.select_by == "reward":
        asks[held] = np.minimum(epochs + 1, profiles[held])
    prompts = values["write"]([examples[i] for i in several], [candidates[i][: options.k] for i in several])
    lengths = np.array([
        (counter.num_tokens(prompt.messages), counter.count(str(examples[i].target)))
        for prompt, i in zip(prompts, several, strict=True)
    ], np.int64).reshape(-1, 2)  # fmt: skip
    if judged is not None:
        lengths[:, 1] = judged.max_new_tokens or values["generate"].method.max_new_tokens or 0
    repeated = np.repeat(lengths, asks.astype(np.int64), axis=0).tolist()
    scored, answers = (repeated, []) if judged is None else ([], repeated)
    most = "at most: a profile that is drawn again is not asked again; the policy's own steps are not counted"
    note = "; ".join(filter(None, [_BY_LOT * drawn, most]))
    return _asked(f"{label}: rewards", llm, scored, answers, note)


# -- models that count ---------------------------------------------------------------------------------


def _counted(stage: Stage, counting: dict[str, Counting]) -> tuple[dict[str, Counting], dict[str, Node]]:
    """The counting models of a stage by the keys of those that they stand for, and its needs with them.

    What they have counted so far is dropped, but equal requests still count once.
    """
    needs, models = dict(stage.needs), dict[str, Counting]()
    for node, options in _options(stage, LLM):
        # One that has yet to be tuned has no answers in the cache.
        model = language_models.counting(options, known=not node.needs)
        models[node.key] = counting.setdefault(node.key, model)
        models[node.key].scored, models[node.key].written = [], []  # drops those of other stages
        new, made = _constant(node.name, models[node.key], node.key), dict[int, Node]()
        needs = {name: substituted(need, node, new, made) for name, need in needs.items()}
    return models, needs


def _constant(name: str, model: Counting, of: str) -> Value:
    return Value(name, (), {}, lambda: model, identity=lambda: f"counting for {of}")


def _new(stage: Stage, label: str, models: Mapping[str, Counting], note: str) -> list[Row]:
    """What the models of a stage were asked for it; of those that only counted tokens nothing."""
    asked = [(options, models[node.key]) for node, options in _options(stage, LLM)]
    rows = [_asked(label, options, model.scored, model.written, note) for options, model in asked]
    return [row for row in rows if row.prompts] or rows[:1]


# -- what stands in for values that only models could tell ---------------------------------------------


def _is_model(node: Node) -> bool:
    options = node.options if isinstance(node, Value) else ()
    return node.name in _MODELS or any(isinstance(one, LLM | Encoder) for one in options)


def _walk(nodes: Iterable[Node], enters: Callable[[Node], bool]) -> list[Node]:
    """These nodes and what they need, each once, without those (and what these need) that are not entered."""
    nodes_by_id: dict[int, Node] = {}
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        if id(node) not in nodes_by_id and enters(node):
            nodes_by_id[id(node)] = node
            waiting += node.needs.values()
    return [*nodes_by_id.values()]


def _in_memory(stage: Stage) -> list[Node]:
    """The nodes without which a stage cannot compute, and which are no stages."""
    return _walk(stage.needs.values(), lambda node: not isinstance(node, Stage))


def _options(stage: Stage, kind: type[Kind]) -> list[tuple[Value, Kind]]:
    """The models of a kind that a stage itself asks, with their options."""
    return [
        (node, one)
        for node in _in_memory(stage)
        if isinstance(node, Value) and not (kind is LLM and node.name == "judge")
        for one in node.options
        if isinstance(one, kind)
    ]


class _Drawn(Rankings):
    """Rankings of a stage that a model has yet to make: as many documents as it would give, by lot.

    `chosen`: whether as many as are selected, or all that are retrieved.
    """

    def __init__(self, run: Run, stage: Stage, *, chosen: bool = True) -> None:
        super().__init__(Path())
        methods = {name: stage.needs[name].method for name in Pipeline._fields}  # type: ignore[attr-defined]
        m = methods["neighbours"].searched
        drawn: dict[str, Any] = {
            "expand": Nothing(),
            "neighbours": neighbours.Self() if m == 1 else neighbours.Random(m=m),
            "retrieve": retrieve.Random(k=methods["retrieve"].k),
            "select": select.TopK(k=methods["select"].k if chosen else None),
        }
        run = run.changed(**drawn)._replace(data=stage.needs["store"], nodes={})
        slots = {name: Slot(method, run).value for name, method in drawn.items()}
        self._system = System({"store": stage.needs["store"].value, **slots}, collaboration="text")

    def read(self, store: Store, examples: Iterable[Example]) -> Iterator[Ranking]:
        for some in chunks(examples):
            yield from self._system.rank(some)


class _Targets(Answers):
    """Answers that have yet to be made: each is the target."""

    def __init__(self) -> None:
        super().__init__(Path())

    def records(self, examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
        for example in examples:
            yield {"text": example.target or ""}


def _values(run: Run, stage: Stage, needs: Mapping[str, Node]) -> tuple[dict[str, Any], bool]:
    """The values of a stage's needs, and whether some are stand-ins.

    Raises LookupError for what nothing stands in for.
    """
    values, drawn = dict[str, Any](), False
    for name, node in needs.items():
        needed = _walk([node], lambda node: not (isinstance(node, Stage) and node.seconds is not None))
        if not any(map(_is_model, needed)):
            values[name] = node.value
            continue
        drawn = True
        if isinstance(node, Stage) and node.name == "rank":
            values[name] = _Drawn(run, node)
        elif isinstance(node, Stage) and node.name in ("generate", "folds"):
            values[name] = _Targets()
        else:
            raise LookupError(node.label if isinstance(node, Stage) else node.name)
    return values, drawn
