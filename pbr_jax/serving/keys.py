"""Keys of a server's callers. A key stands for one user, or for a trusted program that names users itself.

The file, of mode 0600, holds only hashes of keys. A key has 256 random bits, so its hash needs no salt.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base.files import parse_json, tighten, write_text
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.base.words import person
from pbr_jax.corpus.arguments import check_filled

_PREFIX = "pbr-"


class Caller(NamedTuple):
    """Who calls. `user` is None for a trusted program, which names the user of each request."""

    user: str | None


class Keys:
    """The keys in a file. It is read again when it changes. A file that does not exist has no keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: tuple[tuple[int, int], dict[str, str | None]] = (0, 0), {}
        self._read()

    def caller(self, key: str) -> Caller | None:
        """Whose key it is; None: it is not known."""
        known, hashed = self._read(), _hash(key)
        return Caller(known[hashed]) if hashed in known else None

    @property
    def users(self) -> list[str | None]:
        """The user of each key, None for a trusted program."""
        return [*self._read().values()]

    def add(self, user: str | None) -> str:
        """Makes a key for a user, or for a trusted program (None), and returns it. It is not stored."""
        if user is not None:
            check_filled(user, "user")
        key = _PREFIX + secrets.token_urlsafe(32)
        with self._changing() as known:
            known[_hash(key)] = user
        return key

    def remove(self, user: str | None) -> int:
        """Deletes all keys of a user, or of trusted programs (None), and returns their number."""
        with self._changing() as known:
            gone = [hashed for hashed, of in known.items() if is_same(of, user)]
            for hashed in gone:
                del known[hashed]
        return len(gone)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, str | None]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            yield (known := {**self._read()})
            listed = [{"key": hashed, "user": user} for hashed, user in known.items()]
            write_text(self.path, json.dumps({"keys": listed}, indent=1))

    def _read(self) -> dict[str, str | None]:
        """The user of each hash of a key; the file is read again if it has changed."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return {}
        version, known = self._last  # together, since several threads read
        if version != (found.st_mtime_ns, found.st_ino):
            tighten(self.path)
            try:
                listed = parse_json(self.path.read_text(encoding="utf-8"))["keys"]
                known = {one["key"]: one["user"] for one in listed}
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{self.path} is no file of keys; pbr-jax keys add makes one") from None
            self._last = (found.st_mtime_ns, found.st_ino), known
        return known


def is_same(one: str | None, other: str | None) -> bool:
    """Whether two names, as callers write them, are of one user (`words.person`)."""
    return one == other or (one is not None and other is not None and person(one) == person(other))


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
