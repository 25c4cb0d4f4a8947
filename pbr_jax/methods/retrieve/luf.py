"""LUF's retriever: it learns from labels on what it retrieved, block by block of a stream.

"LLM and User Feedback Based Contrastive Learning Improves Retrieval-Augmented Generation When Question and
Answer Domains Shift" (LUF, anonymous ACL submission), section 2.2. Labels: `pbr_jax.stages.labels`.
"""

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import Feedback, UserError
from pbr_jax.corpus.search import Kind, Search
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, builds_nodes, constant
from pbr_jax.index import Matrix
from pbr_jax.methods.expand.none import Nothing
from pbr_jax.methods.retrieve import adapted, fused
from pbr_jax.options import Labels, Learner, LUFLoss, Retrieve, Training, adapting, names_of
from pbr_jax.options.base import added
from pbr_jax.pipeline import Neighbour, Query, RetrieveSlot, Tally
from pbr_jax.stages import simulated, vectors
from pbr_jax.stages.labels import Judge, Labelled, accuracy, judge, label
from pbr_jax.stages.run import Run, enable_compilation_cache
from pbr_jax.stages.search import Searching, expanded, gated, query_vectors, without_names
from pbr_jax.stages.search import search as nearest
from pbr_jax.text.encode import TextEncoder

_opened = functools.cache(Store)


@dataclass(frozen=True, kw_only=True)
class Luf(Learner, Searching):
    """Dense retrieval that learns from labelled documents, for queries alone or for queries and documents
    (LUF)."""

    pools: ClassVar[bool] = True

    method: Literal["luf"] = "luf"
    # trained part. query_tower: the encoder, for queries alone; map: a linear map of query vectors, trained
    # in seconds; both: the encoder, also for documents, which are encoded again after every block (as in the
    # paper)
    moves: adapted.Moves = "query_tower"
    # starting point of every update. frozen: the untrained encoder, with all labels so far, so nothing is
    # forgotten; last: the previous state, with the labels of the newest block and a sample of older ones
    starts: Literal["frozen", "last"] = "frozen"
    replay: float = 0.5  # starts last: number of older questions for each new one, drawn by the seed
    # overlap: a batch has questions that share documents (Eq. 1); random: random questions
    batches: Literal["overlap", "random"] = "overlap"
    labels: Labels = field(default_factory=Labels)  # how documents are labelled
    loss: LUFLoss = field(default_factory=LUFLoss)  # the weights and constants of the loss
    # how every update is trained. A map uses optimizer.head_learning_rate; its default 3e-4 was chosen on
    # Chinese and English questions, not on the reported ones. The field is not called `training`, so that
    # --retrieve.method luf keeps these defaults
    update: Training = field(default_factory=adapting)
    index: Kind = "auto"  # index of the shared documents, as for dense
    # least cosine of the query and a user's own document. The paper uses 0.5. None: no bound
    least_own: float | None = None
    # which simulated user remarks on past questions become shared documents. oracle: the correct ones;
    # judged: those that the language model judges correct, by the config's `remarks` (as in the paper); all:
    # all of them, which shows what a judge is needed for. They are made from the data's answers
    # (supervision), and nothing is trained on them
    remarks: simulated.Accepts = "none"
    # further retrievers, such as bm25. Their standardised scores are added to this retriever's, as in fused.
    # Only its own candidates are labelled
    of: tuple[Retrieve, ...] = field(default=(), metadata=added(()))

    def check(self) -> None:
        super().check()
        fused.check_parts(self.of)
        if self.of and self.remarks != "none":
            raise UserError(
                f"retrieve.remarks is {self.remarks}, and {names_of(self.of)[0]} of retrieve.of would not "
                "search the remarks; set retrieve.remarks to none, or leave retrieve.of out"
            )
        self.at_least("replay", 0)
        self.update.check_no_values("retrieve.update")
        self.update.check_no_start("retrieve.update", "take retrieve.method adapted with retrieve.state")
        if self.update.accumulate != 1:
            raise UserError(
                f"retrieve.update.accumulate is {self.update.accumulate or 'none'}, and LUF's loss "
                "compares the questions of a batch: set it to 1, or lower retrieve.update.batch_size"
            )

    @property
    def ceiling(self) -> bool:
        return any(part.ceiling for part in self.of)

    @property
    def supervised(self) -> bool:
        return self.labels.supervised or self.remarks != "none"

    @property
    def supervision(self) -> str:
        made = [] if self.remarks == "none" else [f"remarks made from the answers (remarks {self.remarks})"]
        given = [f"the data's own labels (labels.kind {self.labels.kind})"] if self.labels.supervised else []
        return f"supervision, {' and '.join(given + made)} of questions"

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)  # what has moved, the state knows

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        run.learns_from_others("retrieve.method luf")
        _check(self, run)
        embeddings = vectors.documents(run, vectors.encoder(run))
        expand = run.config.expand
        return {
            "store": run.data,
            "encoder": vectors.encoder(run),
            "embeddings": embeddings,
            "shared": vectors.shared(run, embeddings, self.index),
            "seed": constant("seed", run.config.seed),
            "collaboration": constant("collaboration", run.config.collaboration),
            **judge(run, self.labels),
            **simulated.simulation(run, self.remarks),
            **({} if isinstance(expand, Nothing) else {"expand": Slot(expand, run)}),
            **fused.slots_of(self.of, run),
            **fused.pooling(run),
        }

    @builds_nodes
    def check_run(self, run: Run) -> None:
        adapted.check_encoder(vectors.encoder(run).value)
        store: Store = run.data.value
        if not store.has_shared and run.config.collaboration != "text":
            raise UserError(
                "retrieve.method luf learns from labels on shared documents, and this data has none; set "
                "collaboration to text to learn from those on the asking user's own documents"
            )
        kind, examples = self.labels.kind, store.examples()
        if kind in ("gold", "shuffled") and not any(example.relevant for example in examples):
            raise UserError(
                f"retrieve.labels.kind is {kind}, and the data name no relevant documents; take answer, or "
                "labels of the language model (yes_no, query_likelihood)"
            )
        if kind == "answer" and not any(example.target for example in examples):
            raise UserError(
                "retrieve.labels.kind is answer, and no question has one; take labels of the language model "
                "(yes_no, query_likelihood)"
            )

    def start(self, folder: Path, *, encoder: TextEncoder, **values: Any) -> None:
        adapted.write(folder, adapted.State(self.moves, encoder.fingerprint))

    def corpus(self, store: Store, state: Path) -> Store:
        file = simulated.corpus(state)
        return _opened(file) if file.exists() else store

    def slot(
        self,
        tally: Tally,
        *,
        state: Path,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        shared: Search,
        seed: int,
        collaboration: str,
        judge: Judge | None = None,
        expand: Bound | None = None,
        simulation: simulated.Simulation | None = None,
        pool: bool = False,
        **parts: Bound,
    ) -> RetrieveSlot:
        corpus = self.corpus(store, state)
        if corpus is not store:
            embeddings, shared = adapted.searched(corpus, encoder, self.index)
        known = {"store": corpus, "encoder": encoder, "embeddings": embeddings, "shared": shared}
        sums = bool(self.of) or pool
        k = fused.depth(store, self.k, pool) if sums else self.k
        own = adapted.searching(state, k, self.index, self.least_own, names=self.names, **known)
        if not sums:
            return own
        summed = {self.method: own, **fused.opened(self.of, k, tally, parts)}
        return fused.Fused(k=self.k).together(summed, [1.0] * len(summed), corpus, pool)

    def observe(
        self,
        block: Any,
        *,
        state: Path,
        store: Store,
        encoder: TextEncoder,
        seed: int,
        collaboration: str,
        embeddings: Matrix,
        shared: Search,
        judge: Judge | None = None,
        expand: Bound | None = None,
        simulation: simulated.Simulation | None = None,
        **_: Any,
    ) -> list[dict[str, Any]]:
        """Labels on the `labels.depth` documents of the data that the present state finds for each question.

        Remarks are not among them, so no weights are learned from these.
        """
        examples = block.examples
        queries = without_names(store, self.names)(examples, expanded(examples, expand))
        if self.moves == "map":
            found = query_vectors(encoder, queries)
            queries = [query._replace(vector=vector) for query, vector in zip(queries, found)]
        depth, known = self.labels.depth, {"store": store, "encoder": encoder, "embeddings": embeddings}
        known["shared"] = shared
        search = gated(adapted.searching(state, depth, self.index, self.least_own, **known), collaboration)
        rankings = search(examples, queries, [_open(store, e.user_id, collaboration) for e in examples])
        rankings = [sorted(ranking, key=lambda c: -c.score)[:depth] for ranking in rankings]
        labelled = label(self.labels, examples, rankings, seed=seed, judge=judge, collaboration=collaboration)
        found = [one._asdict() | self._asked(query) for one, query in zip(labelled, queries, strict=True)]
        if simulation is None:
            return found
        shown = gated(nearest(k=simulation.documents, names=self.names, **known), collaboration)
        told = simulated.remarks(simulation, examples, shown, seed=seed)
        return [{**one, "remark": remark._asdict()} for one, remark in zip(found, told, strict=True)]

    def _asked(self, query: Query) -> dict[str, Any]:
        """What is learned from in place of the question's own text."""
        if query.vector is not None:
            return {"vector": query.vector.tolist()}
        return {} if self.names == "keep" else {"query": " ".join(query.texts)}

    def learn(self, blocks: Any, *, state: Path, out: Path, seed: int, store: Store, **values: Any) -> None:
        if self.remarks != "none":
            simulated.add(self.corpus(store, state), blocks[-1].examples, _told(blocks[-1]), out)
        training = out / "training"  # what a killed attempt left, such as checkpoints
        if not (out / adapted.HEADER).is_file():
            lessons = _lessons(self, blocks, seed)
            if lessons:
                self._train(lessons, state, out, training, seed, store=store, **values)
            else:
                adapted.copy(state, out)
        shutil.rmtree(training, ignore_errors=True)

    def _train(
        self,
        lessons: Sequence["Lesson"],
        state: Path,
        out: Path,
        training: Path,
        seed: int,
        *,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        **values: Any,
    ) -> None:
        from pbr_jax.train import luf

        enable_compilation_cache()
        begin = adapted.params(state) if self.starts == "last" else None
        texts = [lesson.query for lesson in lessons]
        if self.moves == "map":
            given = np.array([lesson.vector for lesson in lessons], np.float32)
            moving = luf.mapped(given, embeddings.__getitem__, begin)
        elif self.moves == "query_tower":
            moving = luf.query_tower(encoder, texts, embeddings.__getitem__, begin)
        else:
            moving = luf.both(encoder, texts, lambda rows: [t for _, t in store.texts(rows)], begin)
        fitted = luf.learn(
            moving,
            [lesson.labels for lesson in lessons],
            self.loss,
            self.update,
            training,
            overlap=self.batches == "overlap",
            seed=seed,
        )
        losses = [line["loss"] for line in fitted.metrics if "loss" in line]
        known = (losses[0], losses[-1]) if losses else None
        header = adapted.State(self.moves, encoder.fingerprint, len(lessons), fitted.step, known)
        adapted.write(out, header, fitted.params)

    def report(self, blocks: Any, *, store: Store, **values: Any) -> dict[str, float]:
        """How right the labels are. Raises UserError where no block has a document that holds the answer."""
        examples = [example for block in blocks for example in block.examples]
        observed = [one for block in blocks for one in block.observations]
        known = [Labelled(**{name: one[name] for name in Labelled._fields}) for one in observed]
        if not any(1.0 in one.grades for one in known):
            raise UserError(
                f"retrieve.labels.kind {self.labels.kind} found no document that holds the answer in any "
                "block, so nothing was learned; raise retrieve.labels.depth (judged where a model labels) or "
                "take others: gold wants data that names relevant documents, answer wants answers alone"
            )
        found = accuracy(known, examples, store)
        if self.remarks == "none":
            return found
        return found | simulated.counts([(block.examples, block.rankings, _told(block)) for block in blocks])


class Lesson(NamedTuple):
    """A question with its labels; `vector` [d] where a map of vectors learns."""

    query: str
    labels: Feedback
    vector: list[float] | None


@builds_nodes
def _check(options: Luf, run: Run) -> None:
    stream, size, expand = run.config.stream, options.update.batch_size, run.config.expand
    if stream.size is not None and stream.size < size:
        raise UserError(
            f"stream.size is {stream.size}, below a batch of retrieve.update.batch_size {size}; raise the "
            "one or lower the other"
        )
    if stream.protocol == "cross_users" and options.starts == "last":
        raise UserError(
            "retrieve.starts is last, and folds of users (stream.protocol cross_users) have no order; set "
            "retrieve.starts to frozen"
        )
    if expand.own_vector and options.moves != "map":
        raise UserError(
            f"expand.method {expand.method} brings the query's vector, so retrieve.moves {options.moves} "
            "would not change what is found; set retrieve.moves to map"
        )


def _open(store: Store, user: str, collaboration: str) -> list[Neighbour]:
    """Whose documents are labelled for a question of a user: shared ones, and by `text` the user's own."""
    own = [Neighbour(user)] if collaboration == "text" else []
    return [*own, *([Neighbour("")] if store.has_shared else [])]


def _told(block: Any) -> list[simulated.Told]:
    return [simulated.Told(**observed["remark"]) for observed in block.observations]


def _lessons(options: Luf, blocks: Any, seed: int) -> list[Lesson]:
    """The questions to learn from: those with a label that says something.

    Without related documents in the loss, that is a document that holds the answer.
    """
    newest = len(blocks) - 1
    read = blocks if options.starts == "frozen" or options.replay else blocks[newest:]
    parts = [_of_block(options, block) for block in read]
    if options.starts == "frozen":
        return [lesson for part in parts for lesson in part]
    older, new = [lesson for part in parts[:-1] for lesson in part], parts[-1]
    count = min(len(older), round(options.replay * len(new)))
    drawn = np.random.default_rng([seed, 6, newest]).choice(len(older), count, replace=False)
    return [*(older[i] for i in np.sort(drawn)), *new]


def _of_block(options: Luf, block: Any) -> list[Lesson]:
    least = 0.0 if options.loss.flaccid else np.nextafter(1.0, 0.0)
    found = []
    for example, observed in zip(block.examples, block.observations, strict=True):
        grades = np.array(observed["grades"], np.float32)
        if grades.max(initial=0.0) > least:
            own = Feedback(np.array(observed["rows"], np.int64), grades)
            found.append(Lesson(observed.get("query", example.query), own, observed.get("vector")))
    return found
