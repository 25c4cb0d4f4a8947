"""Summaries of what a user has said, written by the language model: LUF's personal store of a dialogue.

"LLM and User Feedback Based Contrastive Learning Improves Retrieval-Augmented Generation When Question and
Answer Domains Shift" (LUF), sections 2.3 and 3.5: each question of a user is summarised when it was
answered (the structure of prompt A.1.4, in words of our own); later questions of that user find at most `k`
summaries whose cosine is at least `least`. Documents of the user's history are not searched.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors, VectorStore
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.index.top_k import top_positions
from pbr_jax.llm import LLM, Sampling
from pbr_jax.models.thinking import after_thinking
from pbr_jax.options import Learner, Retrieve
from pbr_jax.pipeline import Examples, Neighbour, Queries, Ranking, RetrieveSlot, Searched, Tally
from pbr_jax.stages import language_model, vectors
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import candidates, query_vectors
from pbr_jax.text.encode import TextEncoder

NOTHING = "NOTHING"
PROMPT = f"""Part of a conversation between a user and an assistant:

{{said}}

Does the user's last message tell a wish, a choice or a fact? If so, write it down in one short sentence \
that is clear without the conversation. If not, write {NOTHING}."""

_FILE = "store.sqlite"


@functools.lru_cache(maxsize=4)  # a stream has a store for each of its blocks
def _opened(file: Path, inode: int, written: int) -> Store:
    return Store(file)


@dataclass(frozen=True, kw_only=True)
class Summaries(Learner, Retrieve):
    """Summaries of what the user said in questions of earlier blocks."""

    method: Literal["summaries"] = "summaries"
    k: int = 5  # number of documents in the prompt, as in LUF
    least: float = 0.5  # least cosine of the query and a summary (LUF, appendix B)
    # number of last lines of the input that are summarised. The default of 2 covers the assistant's turn,
    # which shows what a "yes" refers to, and the user's
    lines: int = 2
    max_new_tokens: int = 48  # maximum length of a summary, in tokens: about a sentence

    def check(self) -> None:
        super().check()
        self.between("least", -1, 1)
        self.at_least("lines", 1)
        self.at_least("max_new_tokens", 1)

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        if run.config.stream.protocol == "cross_users":
            raise UserError(
                "retrieve.method summaries keeps a corpus of its own, which folds of users (stream.protocol "
                "cross_users) do not have; leave stream.protocol out"
            )
        return {"store": run.data, "encoder": vectors.encoder(run), "llm": language_model.frozen(run)}

    def corpus(self, store: Store, state: Path) -> Store:
        file = state / _FILE
        if not file.exists():
            return store
        found = file.stat()
        return _opened(file, found.st_ino, found.st_mtime_ns)  # a state may be made anew at its place

    def slot(
        self, tally: Tally, *, state: Path, store: Store, encoder: TextEncoder, llm: LLM
    ) -> RetrieveSlot:
        corpus = self.corpus(store, state)
        embeddings, first = Vectors(corpus, VectorStore(encoder)), store.rows

        def nearest(example: Example, vector: np.ndarray, user: Neighbour) -> Ranking:
            rows = corpus.before(user.user_id, example.time)
            rows = rows[rows >= first]  # those before are of the data
            cosines = _unit(embeddings[rows]) @ _unit(vector)
            rows, cosines = rows[cosines >= self.least], cosines[cosines >= self.least]
            best = top_positions(cosines, self.k)
            return candidates(corpus, rows[best], cosines[best] * user.weight)

        def retrieve(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
            triples = zip(examples, query_vectors(encoder, queries), neighbours, strict=True)
            found = [[c for user in users for c in nearest(e, v, user)] for e, v, users in triples]
            tally.counts["summaries_found"] += sum(map(len, found))
            return found

        return retrieve

    def observe(self, block: Any, *, llm: LLM, **values: Any) -> list[str]:
        """The summary of each question; "" where there is nothing to keep."""
        said = ["\n".join(example.input.splitlines()[-self.lines :]) for example in block.examples]
        prompts = [[{"role": "user", "content": PROMPT.format(said=text)}] for text in said]
        return list(map(_read, llm.generate(prompts, Sampling(self.max_new_tokens))))

    def learn(self, blocks: Any, *, state: Path, out: Path, store: Store, **values: Any) -> None:
        for left in out.glob(f"{_FILE}*"):  # of an interrupted attempt
            left.unlink()
        copy, newest = self.corpus(store, state).copy_to(out / _FILE), blocks[-1]
        copy.append(
            Document(f"summary-{example.id}", example.user_id, text, time=example.time)
            for example, text in zip(newest.examples, newest.observations, strict=True)
            if text
        )
        copy.close()

    def report(self, blocks: Any, **values: Any) -> dict[str, float]:
        """How many summaries were written, and how many questions had nothing to keep."""
        written = [bool(text) for block in blocks for text in block.observations]
        return {"summaries": float(sum(written)), "nothing": float(len(written) - sum(written))}


def _read(answer: str) -> str:
    """A summary in one line; "" where the model wrote that there is none, or nothing at all."""
    text = " ".join((after_thinking(answer) or "").split())
    return "" if text.strip("\"'*.! ").upper() == NOTHING else text


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; of 0 where they have none."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
