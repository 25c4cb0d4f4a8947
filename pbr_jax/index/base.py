"""What all indices share: who owns a row, who may be searched, and how an index reaches the disk.

A search says whose documents it may return, always. There is no default and no filter to forget:
`users` is one collection of user ids a query, or the sentinel `EVERYONE` for corpora that are shared
on purpose and for searching among users. Ids are compared character by character; no prefix, case
or Unicode form of an id stands for another.
"""

import enum
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.files import parse_json
from pbr_jax.types import UserError

FORMAT = 1  # of index folders


class Everyone(enum.Enum):
    """The type of the sentinel `EVERYONE`."""

    EVERYONE = "everyone"


EVERYONE = Everyone.EVERYONE
"""Explicitly no restriction: every row of the index may be returned."""

Users = Sequence[Collection[str]] | Everyone
"""Whose rows each query may return: one collection of user ids a query, or `EVERYONE`."""


class Found(NamedTuple):
    """The best rows of each query, best first; row -1 and score -inf where there are fewer than k."""

    rows: Int[np.ndarray, "q k"]
    scores: Float[np.ndarray, "q k"]


class Owners:
    """Which user owns each of `n` rows, as integer codes, with the rows of each user at hand.

    `owners` holds user ids, or integers that then stand for the ids `str(integer)`.
    """

    def __init__(self, owners: Sequence[str] | np.ndarray) -> None:
        self.names, self.codes = _coded(owners)
        self._code_of = {name: code for code, name in enumerate(self.names)}
        self._order = np.argsort(self.codes, kind="stable")
        self._starts = np.searchsorted(self.codes[self._order], np.arange(len(self.names) + 1))

    def __len__(self) -> int:
        return len(self.codes)

    def code(self, user: str) -> int:
        """The user's code in `codes`, or -1 for a user without rows."""
        return self._code_of.get(user, -1)

    def rows(self, user: str) -> np.ndarray:
        """The user's rows, ascending; none for a user without rows."""
        code = self.code(user)
        if code < 0:
            return np.empty(0, np.int64)
        return self._order[self._starts[code] : self._starts[code + 1]]

    def rows_of_all(self, users: Iterable[str]) -> np.ndarray:
        """The rows of several users together, ascending."""
        found = [self.rows(user) for user in set(users)]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _coded(owners: Sequence[str] | np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """User ids in order of first appearance (integers: ascending), and each row's position among them."""
    if isinstance(owners, np.ndarray) and owners.dtype.kind in "iu":
        values, codes = np.unique(owners, return_inverse=True)
        return tuple(str(value) for value in values), codes.astype(np.int32)
    table: dict[str, int] = {}
    names = owners.tolist() if isinstance(owners, np.ndarray) else owners
    codes = np.fromiter((table.setdefault(name, len(table)) for name in names), np.int32, len(names))
    wrong = [name for name in table if not isinstance(name, str) or not name]
    if wrong:
        raise UserError(
            f"an owner is {wrong[0]!r}, but every row needs the id of its user: a non-empty string"
        )
    return tuple(table), codes


def check_users(users: Users, queries: int) -> Users:
    """`users` itself if it names somebody for each of `queries` queries; fails closed otherwise.

    Raises `UserError` for None, for a bare string, for another number of entries than queries, and
    for an entry that names nobody or holds an empty id. An id that owns no rows is not an error: a
    new user has an empty history, and such a query finds nothing.
    """
    if users is EVERYONE:
        return users
    if users is None or isinstance(users, str | Everyone):
        raise UserError(
            f"users is {users!r}, but a search needs one collection of user ids a query, or EVERYONE"
        )
    if len(users) != queries:
        raise UserError(
            f"users has {len(users)} entries for {queries} queries; give one collection of ids a query"
        )
    for number, allowed in enumerate(users):
        if allowed is None or isinstance(allowed, str):
            raise UserError(
                f"users[{number}] is {allowed!r}, not a collection of user ids; write [user_id] for one user"
            )
        if not allowed or not all(isinstance(user, str) and user for user in allowed):
            raise UserError(
                f"users[{number}] is {allowed!r}; it must name at least one user by a non-empty id"
            )
    return users


def check_matrix(
    vectors: Float[np.ndarray, "n d"], width: int | None = None, name: str = "vectors"
) -> Float[np.ndarray, "n d"]:
    """The matrix as contiguous float32; a memory map stays one. UserError for another width, NaN, inf."""
    if width is not None and vectors.shape[1] != width:
        raise UserError(f"{name} have width {vectors.shape[1]}, but the index holds vectors of width {width}")
    for start in range(0, len(vectors), 65_536):  # in blocks: the matrix may be a file larger than memory
        finite = np.isfinite(vectors[start : start + 65_536]).all(axis=1)
        if not finite.all():
            raise UserError(
                f"row {start + int(np.argmin(finite))} of {name} holds NaN or infinity; encode it again"
            )
    if isinstance(vectors, np.memmap):
        return vectors
    return np.ascontiguousarray(vectors, np.float32)


@dataclass(frozen=True)
class Entries:
    """Document id and owner of each row of an index."""

    ids: tuple[str, ...]
    owners: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.owners):
            raise UserError(
                f"{len(self.ids)} document ids for {len(self.owners)} owners; give one owner a document"
            )
        if len(set(self.ids)) != len(self.ids):
            seen: set[str] = set()
            twice = next(id for id in self.ids if id in seen or seen.add(id))
            raise UserError(f"document id {twice!r} occurs twice; ids must be unique within an index")

    def place(self, ids: Sequence[str], owners: Sequence[str]) -> tuple["Entries", np.ndarray]:
        """Entries with more documents, and the row of each: its old row for a known id, else a new one.

        A document cannot change hands: a known id with another owner raises `UserError`.
        """
        added = Entries(tuple(ids), tuple(owners))
        row_of = {id: row for row, id in enumerate(self.ids)}
        for id, owner in zip(added.ids, added.owners):
            if id in row_of and self.owners[row_of[id]] != owner:
                raise UserError(
                    f"document {id!r} belongs to another user than {owner!r}; delete it before adding it"
                )
        fresh = [i for i, id in enumerate(added.ids) if id not in row_of]
        row_of |= {added.ids[i]: len(self.ids) + offset for offset, i in enumerate(fresh)}
        entries = Entries(
            self.ids + tuple(added.ids[i] for i in fresh),
            self.owners + tuple(added.owners[i] for i in fresh),
        )
        return entries, np.array([row_of[id] for id in added.ids], np.int64)

    def without(self, ids: Iterable[str]) -> tuple["Entries", np.ndarray]:
        """Entries without these ids, and a bool for each old row: it stays. Unknown ids change nothing."""
        gone = set(ids)
        keep = np.array([id not in gone for id in self.ids], bool)
        kept = Entries(
            tuple(id for id in self.ids if id not in gone),
            tuple(owner for id, owner in zip(self.ids, self.owners) if id not in gone),
        )
        return kept, keep


def replaced(vectors: np.ndarray, rows: np.ndarray, new: np.ndarray) -> np.ndarray:
    """A copy of `vectors`, grown as far as `rows` asks, with `new` in those rows."""
    grown = np.empty((max(len(vectors), int(rows.max(initial=-1)) + 1), vectors.shape[1]), np.float32)
    grown[: len(vectors)] = vectors
    grown[rows] = new
    return grown


def save_folder(folder: Path, kind: str, entries: Entries, write: Callable[[Path], dict[str, Any]]) -> None:
    """Save an index so that the folder holds either the old or the new one, whenever the process dies.

    `write(files)` fills a fresh subfolder and returns what index.json records besides ids and owners.
    Then index.json, which names the subfolder, is replaced in one step, and subfolders that it does
    not name are removed: what was deleted from the index is also gone from the disk.
    """
    files = folder / f"files-{secrets.token_hex(8)}"
    files.mkdir(parents=True)
    header = {"format": FORMAT, "kind": kind, "files": files.name, **write(files)}
    temporary = files / "index.json.tmp"
    write_json(temporary, {**header, "ids": entries.ids, "owners": entries.owners})
    os.replace(temporary, folder / "index.json")
    for other in folder.glob("files-*"):
        if other != files:
            shutil.rmtree(other)


def load_folder(folder: Path, kind: str) -> tuple[Path, dict[str, Any], Entries]:
    """The subfolder of files, the header and the entries of a saved index; refuses anything with a pickle."""
    pickles = sorted(folder.rglob("*.pkl")) + sorted(folder.rglob("*.pickle"))
    if pickles:
        raise UserError(
            f"{pickles[0]} is a pickle, which can run code when read; delete it or build the index again"
        )
    header = read_json(folder / "index.json")
    try:
        found, name = (header["format"], header["kind"]), Path(header["files"]).name
        entries = Entries(tuple(header["ids"]), tuple(header["owners"]))
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / 'index.json'} is not an index ({error}); build the index again") from None
    if found != (FORMAT, kind):
        raise UserError(
            f"{folder} holds an index of (format, kind) {found}, not {(FORMAT, kind)}; build it again"
        )
    if not name.startswith("files-"):
        raise UserError(
            f"{folder / 'index.json'} names {name!r} as its files, not a files-* folder; build it again"
        )
    return folder / name, header, entries


def write_json(path: Path, value: Any) -> None:
    """Write JSON in UTF-8."""
    path.write_text(json.dumps(value), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; UserError where the file is missing or damaged."""
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} not found; save an index there first") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); build the index again") from None


def save_vectors(vectors: np.ndarray, path: Path) -> None:
    """Write the matrix as .npy in float32."""
    np.save(path, np.asarray(vectors, np.float32), allow_pickle=False)


def load_vectors(path: Path, rows: int, *, mmap: bool = False) -> np.ndarray:
    """Read a matrix of `rows` rows; UserError where it is missing, damaged or of another length."""
    try:
        vectors = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read as vectors ({error}); build the index again") from None
    if vectors.ndim != 2 or len(vectors) != rows:
        raise UserError(
            f"{path} has shape {vectors.shape}, but index.json lists {rows} rows; build the index again"
        )
    return vectors
