"""Examples and documents: a benchmark's files, read into a store."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base.types import Example, UserError
from pbr_jax.cache.code import code_of
from pbr_jax.corpus import store
from pbr_jax.corpus.columns import Columns
from pbr_jax.corpus.visibility import Visibility
from pbr_jax.data import fingerprint, passages, read, splits, synthetic
from pbr_jax.data import task as task_of
from pbr_jax.graph import Node, Stage, Value
from pbr_jax.llm import reads
from pbr_jax.options import Benchmark, Corpus, Method, TunedGenerator
from pbr_jax.tasks import Task

WHOLE = Corpus()


class Data(NamedTuple):
    """The store's node, and the hashes of the files that are read, by "data" and "training".

    `training`: the node of a store of the training split alone, as if that were evaluated; None where nothing
    learns from it apart.
    """

    node: Node
    hashes: dict[str, str]
    training: Node | None


def data(
    benchmark: Benchmark,
    task: Task,
    methods: Sequence[Method | TunedGenerator],
    *,
    limit: int | None,
    limit_training: int | None,
    limit_history: int | None,
    corpus: Corpus = WHOLE,
) -> Data:
    """The examples of the evaluated split and, where a method looks at it, of the training split.

    What learns from the training split apart finds it in a store of its own, which no choice of evaluated
    questions touches.

    `limit_history` cuts the own history of every evaluated question to its newest documents, and nobody
    else's: what methods learn from, and whose documents are borrowed, stays as it is.

    `corpus` says how all of them are cut into passages.

    Raises:
      UserError: no such benchmark, split or file; a method learns, and there is no training split or it is
        the evaluated one.
    """
    made = benchmark.made_up
    source = _source(benchmark)
    there = synthetic.SPLITS if made and source is benchmark else splits(source)
    learned = _training_split(benchmark, methods, there)
    if learned is not None and task_of(learned).kind != task.kind:
        raise UserError(
            f"benchmark.training_name is {learned.name}, whose questions are of another kind than those of "
            f"{benchmark.name}; take one that asks for the same"
        )
    files = {"data": _files(benchmark)}
    if learned is not None:
        files["training"] = _files(learned)
    hashes = {name: node.key if made else fingerprint(of) for (name, node), of in zip(
        files.items(), (benchmark, learned)) if of is not None}  # fmt: skip
    if limit_history is not None and task.kind == "retrieval":
        raise UserError(
            f"limit_history is {limit_history}, and {benchmark.name} scores which documents are found: cut "
            "away, they could not be; leave it out"
        )
    needs, apart = {"evaluated": files["data"]}, None
    target = task.document_target or None
    # How what is found is pooled changes no row.
    cut = (dataclasses.replace(corpus, pool=WHOLE.pool),) if corpus.active else ()
    shared = learned is not None and any(method.learns() in ("welcome", "needed") for method in methods)
    if shared:
        needs["training"] = files["training"]
    if learned is not None and any(method.learns() == "apart" for method in methods):
        own = {"evaluated": files["training"]}
        options = (limit_training, None, None, target, *cut)
        apart = Stage("data", options, own, _build, _open, label="training_data", content=_content)
    options = (limit, limit_training if shared else None, limit_history, target, *cut)
    return Data(Stage("data", options, needs, _build, _open, content=_content), hashes, apart)


def _training_split(
    benchmark: Benchmark, methods: Sequence[Method | TunedGenerator], there: tuple[str, ...]
) -> Benchmark | None:
    """The split that is learned from; None where nothing looks at it, or it is missing and not needed."""
    learns = [
        f"{method.section}.method {method.method}"
        for method in methods
        if method.learns() in ("needed", "apart")
    ]
    if all(method.learns() == "unused" for method in methods):
        return None
    source = _source(benchmark)
    if benchmark.split == benchmark.training and source is benchmark:
        if learns:
            raise UserError(
                f"benchmark.split and benchmark.training are both {benchmark.split!r}: numbers would be "
                "reported on what was learned from; evaluate another split"
            )
        return None
    if benchmark.training in there:
        return dataclasses.replace(source, split=benchmark.training)
    if learns:
        raise UserError(
            f"{source.root}: found the splits {', '.join(there)}, wanted {benchmark.training!r}, which "
            f"{' and '.join(learns)} learns from; set benchmark.training, or take untuned methods"
        )
    return None


def _source(benchmark: Benchmark) -> Benchmark:
    """The benchmark that the training split is of: another one, without shared passages, or the same."""
    name, root = benchmark.training_name or benchmark.name, benchmark.training_root or benchmark.root
    if (name, root) == (benchmark.name, benchmark.root):
        return benchmark
    return dataclasses.replace(benchmark, name=name, root=root, seed=0, passages="", distractors="")


def _files(benchmark: Benchmark) -> Node:
    """The benchmark of a split, with its root; made-up data are drawn by `benchmark.seed` first."""
    told = [benchmark.name, benchmark.split, benchmark.training]
    told += [] if benchmark.form == Benchmark.form else [benchmark.form]
    told += [] if benchmark.inter_turns == Benchmark.inter_turns else [str(benchmark.inter_turns)]
    told += [] if benchmark.cold_start == Benchmark.cold_start else [f"cold_start {benchmark.cold_start}"]
    if benchmark.made_up:
        made = Stage("synthetic", (benchmark.seed,), {}, _generate, _same)
        shared = passages.identity(benchmark)
        return Value("files", (benchmark,), {"folder": made}, _placed, identity=lambda: [*told, *shared])
    return Value("files", (benchmark,), {}, _placed, identity=lambda: [*told, fingerprint(benchmark)])


def _generate(folder: Path, seed: int) -> None:
    synthetic.generate(folder, seed=seed)


def _same(folder: Path) -> Path:
    return folder


def _placed(benchmark: Benchmark, folder: Path | None = None) -> Benchmark:
    return benchmark if folder is None else dataclasses.replace(benchmark, root=str(folder), seed=0)


def _build(
    folder: Path,
    limit: int | None,
    limit_training: int | None,
    limit_history: int | None,
    target: str | None,
    corpus: Corpus | None = None,
    *,
    evaluated: Benchmark,
    training: Benchmark | None = None,
) -> None:
    learned = () if training is None else _read(training, limit_training)
    if training is not None and training.root != evaluated.root:
        known = {example.user_id for example in _read(evaluated, limit)}
        learned = (_other(example, known, training) for example in learned)
    store.build(
        folder / "store.sqlite", _read(evaluated, limit), target, learned, newest=limit_history,
        shared=passages.collections(evaluated), corpus=corpus,
    )  # fmt: skip


def _read(benchmark: Benchmark, limit: int | None) -> Iterator[Example]:
    """The examples of a split without what the cache has forgotten (`reads.leave_out`)."""
    examples, gone = read(benchmark, limit), reads.left_out()
    return examples if gone is None else filter(None, (_kept(example, gone) for example in examples))


def _kept(example: Example, gone: Callable[[str, str | None], bool]) -> Example | None:
    """An example without documents that are left out; None: its user is, or a document with its id, as of an
    imported table, whose rows are questions and documents."""
    if gone(example.user_id, None) or gone(example.user_id, example.id):
        return None
    lost = {document.id for document in example.profile if gone(document.user_id, document.id)}
    profile = tuple(document for document in example.profile if document.id not in lost)
    groups = (tuple(id for id in group if id not in lost) for group in example.relevant)
    return dataclasses.replace(example, profile=profile, relevant=tuple(filter(None, groups)))


def _other(example: Example, known: Container[str], training: Benchmark) -> Example:
    if example.user_id in known:
        raise UserError(
            f"{training.root}: training question {example.id!r} is of user {example.user_id!r}, whose name a "
            "user of the evaluated data has too; give users of different data different names"
        )
    return example


def _open(folder: Path) -> store.Store:
    return store.Store(folder / "store.sqlite")


def _content(found: store.Store) -> list[str]:
    """What the store holds, and the code that says who sees what of it."""
    return [found.content, code_of(Visibility), code_of(Columns)]
