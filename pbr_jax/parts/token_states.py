"""Texts as states of tokens on disk: of all documents, and of the queries of some questions.

Computed once by the frozen encoder, in half precision, and memory-mapped. They take 2 bytes x tokens x width
of a text: 49 kB with 64 tokens of all-MiniLM-L6-v2.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from pbr_jax.graph import Node, Stage
from pbr_jax.index.store import Store
from pbr_jax.parts import vectors
from pbr_jax.parts.rankings import Questions
from pbr_jax.parts.run import Run, chunks, enable_compilation_cache, once
from pbr_jax.text.encode import Role, TextEncoder
from pbr_jax.text.token_states import TokenStates

_TOGETHER = 2048  # texts of one file


class Kept:
    """States of texts on disk, by their numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        parts = sorted(folder.glob("*.lengths.npy"))
        lengths = [np.load(part) for part in parts]
        self._ends = [np.cumsum(of_part) for of_part in lengths]
        self.lengths = np.concatenate([np.zeros(0, np.int64), *lengths])
        names = [part.name.removesuffix(".lengths.npy") for part in parts]
        self._states = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]

    def read(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """States float16 [t d] of each of these texts."""
        found = []
        for part, place in (divmod(int(row), _TOGETHER) for row in rows):
            end = self._ends[part][place]
            found.append(self._states[part][end - self.lengths[part * _TOGETHER + place] : end])
        return found


@once
def documents(run: Run, tokens: int) -> Node:
    """States of all documents, row by row as in the store, cut to so many tokens."""
    needs = {"store": run.data, "encoder": vectors.encoder(run)}
    return Stage("token_states", (tokens,), needs, _documents, Kept)


@once
def queries(run: Run, asked: Questions, tokens: int) -> Node:
    """States of the queries of some questions, in their order."""
    needs = {"store": run.data, "encoder": vectors.encoder(run)}
    return Stage("query_states", (tokens, asked), needs, _queries, Kept)


def _documents(folder: Path, tokens: int, *, store: Store, encoder: TextEncoder) -> None:
    _keep(folder, TokenStates(encoder, tokens), store.texts(), "document", store.summary.documents)


def _queries(folder: Path, tokens: int, asked: Questions, *, store: Store, encoder: TextEncoder) -> None:
    texts = (example.query for example in asked.read(store))
    _keep(folder, TokenStates(encoder, tokens), texts, "query", asked.count(store))


def _keep(folder: Path, encoder: TokenStates, texts: Iterable[str], role: Role, total: int) -> None:
    """A file of states for every so many texts; its lengths are written last, and say that it is whole."""
    enable_compilation_cache()
    with tqdm(desc="token states", total=total, disable=None, leave=False) as bar:
        for number, some in enumerate(chunks(texts, _TOGETHER)):
            bar.update(len(some))
            lengths = folder / f"{number:06}.lengths.npy"
            if lengths.exists():
                continue
            states = encoder.encode(some, role=role)
            np.save(folder / f"{number:06}.npy", np.concatenate(states))
            whole = folder / ".lengths.npy"
            np.save(whole, np.array([len(of_text) for of_text in states], np.int64))
            whole.replace(lengths)
