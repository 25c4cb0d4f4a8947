"""How often some data have been checked, and the level that each of these looks has.

If a check is repeated until it says yes, a yes by chance becomes more likely with each look. So look `k` has
intervals of level `1 - alpha / 2^(k - 1)`: all looks together are wrong at most twice as often as the first
one alone. The looks stand in a file beside imported data, and otherwise in the cache.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.base.files import cache_folder, parse_json, private_folder, write_text
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest

FILE = ".pbr_jax_checks"


class Look(NamedTuple):
    """The number of a look at some data, counted from 1, and the file that holds the count."""

    number: int = 1
    file: str = ""

    def confidence(self, first: float) -> float:
        """The level of this look's intervals, where the first one's is `first`."""
        return 1 - (1 - first) / 2 ** (self.number - 1)


ONCE = Look()
"""The first look."""


def look_at(root: str, data: str, asked: Mapping[str, Any]) -> Look:
    """The look at these data with these questions, which is noted. An equal look keeps its number.

    Args:
      root: the folder of imported data. "": other data.
      data: their fingerprint.
      asked: all that the result depends on: the config and the number of questions.

    Raises UserError if the file of looks cannot be read.
    """
    try:
        return _noted(Path(root) / FILE, asked) if Path(root).is_dir() and root else _cached(data, asked)
    except OSError:  # such as data on a read-only disk
        return _cached(data, asked)


def _cached(data: str, asked: Mapping[str, Any]) -> Look:
    private_folder(folder := cache_folder() / "checks")
    return _noted(folder / digest(data), asked)


def _noted(path: Path, asked: Mapping[str, Any]) -> Look:
    with locked(path.with_suffix(".lock")):
        looks = _read(path)
        name = digest(asked)
        if name not in looks:
            looks.append(name)
            write_text(path, json.dumps({"looks": looks}, indent=1) + "\n")
        return Look(looks.index(name) + 1, str(path))


def _read(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        looks = parse_json(path.read_bytes())["looks"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: found no list of earlier checks ({error}); delete the file") from error
    if not isinstance(looks, list) or not all(isinstance(one, str) for one in looks):
        raise UserError(f"{path}: found no list of earlier checks; delete the file")
    return looks
