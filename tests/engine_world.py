"""A small store of users' and shared documents, and what every search in it must find."""

from pathlib import Path

import numpy as np

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.search import InScope, Search
from pbr_jax.corpus.store import Store, build
from pbr_jax.corpus.vectors import Vectors

WIDTH = 16


class Numbers:
    """A text's vector is drawn with the number that it ends with as the seed: whole numbers, with ties."""

    dim = WIDTH

    def vectors_key(self, role):
        return "n" * 64

    def encode(self, texts, *, role="document"):
        drawn = [np.random.default_rng(int(text.split()[-1])).integers(-3, 4, WIDTH) for text in texts]
        return np.array(drawn, np.float32).reshape(-1, WIDTH)


def profile(user, numbers, date=None):
    """A user's documents, or shared ones of user ""."""
    times = {n: None if date is None else date + 2e7 * (n % 7) for n in numbers}
    return tuple(
        Document(f"{user}{n}", user, f"text {n}", time=time, shared=not user) for n, time in times.items()
    )


def made(folder: Path, living: bool = True) -> Store:
    """Users u0 to u3, dated and undated documents, with duplicates, and shared ones."""
    users = {f"u{i}": [*range(20 * i, 20 * i + 20 + i), 5, 5 + i] for i in range(4)}
    examples = [
        Example(f"q{u}", u, "query 1", "in", "t", profile(u, dict.fromkeys(n), 9.5e8 if u > "u1" else None))
        for u, n in users.items()
    ]
    shared = [Document(f"{n}", "", f"text {n}", shared=True) for n in range(300, 350)]
    build(folder / "frozen", examples, shared={"shared": shared})
    frozen = Store(folder / "frozen")
    return frozen.copy_to(folder / "living") if living else frozen


def check(search: Search, found: Vectors, store: Store, k: int = 4, seed: int = 0) -> None:
    """Rows and scores equal those of scoring everything in scope."""
    rng = np.random.default_rng(seed)
    users = [u for u in store.users if not u.startswith("\0")]
    scopes = [store.history(u) for u in [*users, *([""] if store.has_shared else [])]]
    scopes += [rows[rng.random(len(rows)) < share] for rows in scopes for share in (0.1, 0.6, 0.95)]
    scopes += [store.before(u, time) for u in users for time in (0.0, 1.0e9, 1.1e9)]
    scopes += [scopes[0][:0], np.concatenate([scopes[0], scopes[1][::-1]]), np.repeat(scopes[2], 2)]
    queries = rng.integers(-3, 4, (len(scopes), WIDTH)).astype(np.float32)
    ours, plain = search.search(queries, k, scopes), InScope(found).search(queries, k, scopes)
    np.testing.assert_array_equal(ours.rows, plain.rows)
    np.testing.assert_array_equal(ours.scores, plain.scores)


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
