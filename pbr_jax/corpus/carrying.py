"""The living copy of data that were read anew, without a user who was forgotten: its rows are others."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from pbr_jax.base.locks import locked
from pbr_jax.corpus.schema import FORGOTTEN
from pbr_jax.corpus.store import GONE, Store

_TOGETHER = 1024  # documents


def carried(origin: Callable[[], Store], path: Path) -> Path:
    """The file of the living copy of data that is called `path` at first; `origin` reads the data.

    Where the copy was made from other data, what was added to it, deleted from it and hidden in it is brought
    into a new copy, and the old one is deleted.
    """
    if not (known := sorted(path.parent.glob(f"{path.stem}*.sqlite"))):
        return path
    data = origin()
    new = path.with_name(f"{path.stem}-{data.content[:16]}.sqlite")
    if new in known:
        return new
    with locked(path.with_name(f"{path.name}.carried")):
        if new.is_file():
            return new
        old = known[-1]
        with closing(Store(old)) as store:
            if store.origin in ("", data.content):
                return old
            partial = new.with_suffix(".partial")
            _delete(partial)
            with closing(data.copy_to(partial)) as copied:
                _bring(store, copied)
        os.replace(partial, new)
        _delete(old)
    return new


def _bring(old: Store, new: Store) -> None:
    """Does to a new copy what was done to an old one."""
    before, now = old.places(), new.places()
    added = np.flatnonzero(old.owners != GONE)
    added = added[(added >= old.origin_rows) & (old.firsts[added] == added)]
    with new.changing() as writer:
        for user in set(new.users) - set(old.users):
            writer.forget(writer.code(user))
        for user in old.users:
            if not user.startswith(FORGOTTEN):
                writer.admit(user)
        for start in range(0, len(added), _TOGETHER):
            writer.append(old.wholes(added[start : start + _TOGETHER]))
        for place in now:
            if place not in before:
                writer.erase(*place)
        for place, seen in before.items():
            if not seen:
                writer.hide(*place)
        writer.values["remarks"] = old.remarks


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
