"""Memory systems of others as retrievers: what they remember of a user, found by their own search.

A system runs in a process and an environment of its own (`pbr_jax.external`). It is given a user's documents
in order of time and is asked each question when it knows exactly what the question may see. So no system has
to know about dates, and none sees a session that comes after the question.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import open_private, parse_json, written
from pbr_jax.base.types import NO_ROW, Candidate, Document, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.external.process import HOST, Memory, Process, versions
from pbr_jax.external.server import Server
from pbr_jax.graph import Bound, Node, Slot, Stage, Value, builds_nodes
from pbr_jax.options import IDLE, Retrieve
from pbr_jax.pipeline import Examples, Queries, Ranking, RetrieveSlot, Searched, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run, keep_measures, line
from pbr_jax.text.encode import TextEncoder

_TOGETHER = 64  # documents of an addition
_ASKED, _FILE = "asked.jsonl", "memories.jsonl"


@dataclass(frozen=True, kw_only=True)
class External(Retrieve):
    """A memory system behind an adapter. Candidates are its own texts, with the documents of which they are
    made. They keep the system's order, which need not be that of its scores: the score of a candidate is
    1 / rank, and the system's own is kept beside it.

    `k` is the number of memories, of which several may come from one document.
    """

    own_texts: ClassVar[bool] = True
    pools: ClassVar[bool] = True  # there is nothing to pool

    method: Literal["external"] = "external"
    adapter: str = field(default="", metadata=IDLE)  # Python file with the class Memory
    # Python of the system's own environment, such as VENV/bin/python. "": the one that runs this
    python: str = field(default="", metadata=IDLE)
    settings: str = ""  # JSON object that the adapter is given. "": none
    # base URL of the OpenAI-compatible server whose language model the system uses. "": it has none
    url: str = field(default="", metadata=IDLE)
    model: str = ""  # the model's name on that server
    # environment variable that holds the key of that server, if there is one
    key_variable: str = field(default="OPENAI_API_KEY", metadata=IDLE)
    timeout: float = field(default=600.0, metadata=IDLE)  # time limit of one call of the system, in seconds

    def check(self) -> None:
        super().check()
        self.at_least("timeout", 0.001)
        try:
            given = json.loads(self.settings or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise UserError(f"retrieve.settings is {self.settings!r:.80}, want a JSON object")

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        if not Path(self.adapter).is_file():
            raise UserError(
                f"retrieve.adapter is {self.adapter!r}, which is no file; give the adapter of the memory "
                "system, such as examples/memory/mem0/adapter.py"
            )
        encoder = {"encoder": vectors.encoder(run)}
        system = Value("memory system", (self,), encoder, MemorySystem, identity=self._told)
        expand = Slot(run.config.expand, run)
        needs = {"store": run.data, "system": system, "expand": expand}
        found = Stage("memories", (self.k,), needs, _search, _load)
        return {"store": run.data, "system": system, "found": found}

    def _told(self) -> list[Any]:
        adapter = [file_hash(Path(self.adapter)), file_hash(HOST)]
        return [*adapter, versions(self.python), self.settings, self.model]

    @builds_nodes
    def check_run(self, run: Run) -> None:
        if run.config.neighbours.searched > 1 or run.data.value.has_shared:
            raise UserError(
                "retrieve.method external searches the asking user's memory alone; leave out neighbours.m "
                "and shared documents"
            )

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        system: "MemorySystem",
        found: Mapping[str, list[Memory]],
    ) -> RetrieveSlot:
        known = {} if store.living else found

        def retrieve(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
            rankings = []
            with contextlib.ExitStack() as stack:
                live: Session | None = None
                for example, query in zip(examples, queries, strict=True):
                    memories = None if example.training else known.get(example.id)
                    if memories is None:  # the run did not have it: the user's memory is made now
                        if live is None:
                            folder = stack.enter_context(TemporaryDirectory(prefix="pbr_jax-"))
                            live = stack.enter_context(system.session(Path(folder), store))
                        memories = live.search(example, " ".join(query.texts), self.k)
                    rankings.append([_candidate(example, *pair) for pair in enumerate(memories, 1)])
            return rankings

        return retrieve


def _candidate(example: Example, rank: int, memory: Memory) -> Candidate:
    document = Document(f"memory {rank}", example.user_id, memory.text)
    return Candidate(document, 1 / rank, NO_ROW, {"own": memory.score}, memory.sources)


class MemorySystem:
    """An adapter with what it is given: our encoder, and the server of its language model."""

    def __init__(self, options: External, *, encoder: TextEncoder) -> None:
        self._options, self._encoder = options, encoder

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[tuple[Process, Server, "Ahead"]]:
        """The system over its files in a folder, which an earlier process may have left."""
        o, ahead = self._options, Ahead(self._encoder)
        key, adapter = os.environ.get(o.key_variable, ""), Path(o.adapter)
        with Server(ahead.encode, o.url, key, o.timeout) as server:
            told = {"base_url": server.url, "model": o.model, "dimensions": self._encoder.dim}
            told |= json.loads(o.settings or "{}")
            with Process(adapter, folder, python=o.python, settings=told, timeout=o.timeout) as process:
                yield process, server, ahead

    @contextlib.contextmanager
    def session(self, folder: Path, store: Store) -> Iterator["Session"]:
        """The same, told what the questions of a store may see."""
        with self.running(folder) as (process, server, ahead):
            yield Session(process, server, store, ahead)


class Ahead:
    """An encoder that is told texts before a system asks for them one by one: together they take less."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder, self._known = encoder, dict[str, np.ndarray]()

    def read(self, texts: Sequence[str]) -> None:
        """Encodes texts that will be asked for, and forgets the ones before."""
        self._known = dict(zip(texts, self._encoder.encode(texts), strict=True))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of texts, float32 [n d]."""
        if all(text in self._known for text in texts):
            return np.stack([self._known[text] for text in texts])
        return self._encoder.encode(texts)


class Session:
    """A memory system that is told documents as questions come to see them."""

    def __init__(self, process: Process, server: Server, store: Store, ahead: Ahead) -> None:
        self._process, self._server, self._store, self._ahead = process, server, store, ahead
        self._memories: dict[str, list[set[int]]] = {}  # of each user the rows of each memory

    def search(self, example: Example, text: str, k: int) -> list[Memory]:
        """The memories for a question, of exactly the documents that it may see.

        Raises UserError for a memory of documents that were not added for this user.
        """
        name, rows = self.remember(example)
        found = self._process.search(name, text, k, example.time)
        wholes = {document.id: document.whole for document in self._store.documents(sorted(rows))}
        for memory in found:
            if foreign := {*memory.sources} - wholes.keys():
                raise UserError(
                    f"question {example.id}: the memory system gave a text from {sorted(foreign)}, which was "
                    f"not added for user {example.user_id}; nothing was written"
                )
        return [m._replace(sources=tuple(dict.fromkeys(wholes[s] for s in m.sources))) for m in found]

    def remember(self, example: Example) -> tuple[str, set[int]]:
        """Adds what the question may see and its user's memory lacks, oldest first; the memory's name and
        rows. A question that may not see all of a memory begins another one."""
        seen = {*self._store.visible(example, example.user_id).tolist()}
        memories = self._memories.setdefault(example.user_id, [])
        number = next((i for i, rows in enumerate(memories) if rows <= seen), len(memories))
        if number == len(memories):
            memories.append(set())
        name = f"{example.user_id}#{number}" if number else example.user_id
        new = sorted(seen - memories[number])
        times = np.nan_to_num(self._store.times[new], nan=-np.inf)
        new = [new[place] for place in np.argsort(times, kind="stable")]
        for start in range(0, len(new), _TOGETHER):
            documents = self._store.documents(new[start : start + _TOGETHER])
            self._ahead.read([document.text for document in documents])
            self._process.add(name, documents)
        memories[number] |= seen
        return name, memories[number]

    @property
    def spent(self) -> dict[str, float]:
        """Calls, documents, tokens and seconds."""
        counts = {**self._process.counts, **self._server.counts}
        return {name: round(count, 3) for name, count in counts.items()}


def _search(folder: Path, k: int, *, store: Store, system: MemorySystem, expand: Bound) -> None:
    """Asks the system all evaluated questions, those that see least first, and keeps each reply at once."""
    examples = list(store.examples())
    texts = [" ".join(query.texts) for query in expand(Tally())(examples)]
    sizes = [len(store.visible(example, example.user_id)) for example in examples]
    inside, kept = folder / "system", folder / _ASKED
    done = {record["id"]: record for record in _asked(kept)}
    with (
        system.session(inside, store) as session,
        open_private(kept) as file,
        terminal.bar(desc="memories", total=len(examples)) as bar,
    ):
        file.write("\n")  # after a line that a killed process left unfinished
        for place in sorted(range(len(examples)), key=lambda i: (examples[i].user_id, sizes[i], i)):
            example = examples[place]
            if example.id in done:
                session.remember(example)
            else:
                memories = session.search(example, texts[place], k)
                done[example.id] = {"id": example.id, "memories": [m._asdict() for m in memories]}
                file.write(line(done[example.id]))
                file.flush()
            bar.update(1)
        keep_measures(folder, session.spent)
    with written(folder / _FILE) as file:
        file.writelines(line(done[example.id]) for example in examples)
    kept.unlink()
    shutil.rmtree(inside)


def _asked(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a file whose last line may be unfinished."""
    for text in file.read_text(encoding="utf-8").split("\n") if file.exists() else ():
        with contextlib.suppress(ValueError):
            yield parse_json(text.encode())


def _load(folder: Path) -> dict[str, list[Memory]]:
    return {
        record["id"]: [Memory(m["text"], tuple(m["sources"]), m["score"]) for m in record["memories"]]
        for record in _asked(folder / _FILE)
    }
