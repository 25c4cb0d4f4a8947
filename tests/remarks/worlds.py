"""A released store of three users and a living copy, with all that remarks need but a language model."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store, build
from pbr_jax.options import Remarks
from pbr_jax.remarks.judge import Script
from pbr_jax.remarks.living import Stores

USERS = ("ann", "bob", "cyd")
RULES: list[dict[str, Any]] = [
    {"remark": "lake", "verdict": "correct", "route": "shared", "operation": "modify", "document": "p0"},
    {"remark": "obsolete", "verdict": "correct", "route": "shared", "operation": "hide", "document": "p1"},
    {"remark": "everybody", "verdict": "correct", "route": "shared"},
    {"remark": "no tea", "verdict": "correct", "operation": "modify", "document": "ann0"},
    {"remark": "false", "verdict": "incorrect"},
    {"remark": "thanks", "summary": ""},
]


class World:
    """The folder `corpus/` of a run, and the stores in it."""

    def __init__(self, folder: Path, options: Remarks | None = None, rules: Any = RULES) -> None:
        self.folder, self.path = folder / "corpus", folder / "corpus" / "store.sqlite"
        if not (folder / "data.sqlite").exists():
            examples = [
                Example(
                    f"q {user}", user, "tea", "tea", "x", (Document(f"{user}0", user, f"{user} takes tea"),)
                )
                for user in USERS
            ]
            shared = [Document(f"p{i}", "", text, shared=True) for i, text in enumerate(
                ("the lake is open", "ferries go at noon", "tea is grown on hills"))]  # fmt: skip
            build(folder / "data.sqlite", examples, shared={"made up": shared})
        self.released, self.script = Store(folder / "data.sqlite"), Script(rules)
        self.stores = Stores(
            self.folder / "remarks.sqlite", self.released.content, options or Remarks(),
            changing=self.changing, find=self.find, encode=encode, judge=lambda: self.script,
        )  # fmt: skip

    @contextmanager
    def changing(self, *, grows: bool) -> Iterator[Store]:
        yield self.store

    @cached_property
    def store(self) -> Store:
        if not self.path.exists():
            with suppress(UserError):  # the other process was first
                self.released.copy_to(self.path)
        return Store(self.path)

    def find(self, user: str, text: str) -> list[Document]:
        return [*self.texts(user), *self.texts("")]

    def texts(self, user: str) -> list[Document]:
        return self.store.documents(self.store.history(user))

    def seen(self, user: str) -> list[str]:
        """The texts that a user may see."""
        return [document.text for document in self.find(user, "")]

    def bytes(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.folder.iterdir())


def encode(texts: Sequence[str]) -> np.ndarray:
    """Counts of words, of unit length."""
    vectors = np.zeros((len(texts), 512), np.float32)
    for vector, text in zip(vectors, texts):
        for word in text.split():
            vector[zlib.crc32(word.encode()) % 512] += 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
