"""Where the data of the docs' tables comes from, and how it was cut: `pbr-jax data recipe`.

A recipe names the files to download, with their addresses and, where they are known, SHA-256 hashes, and the
function that makes a folder of them. They stand in `recipes.toml`; `hashes.json` has the hashes of
what the tables were made with.
"""

import hashlib
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from pbr_jax.base import terminal
from pbr_jax.base.files import cache_folder, new_folder, parse_json
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.data.recipes import cuts

_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte

Cut = Callable[[Path, Path], None]
"""Reads downloaded files in the first folder and writes a benchmark into the second."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The data of one benchmark."""

    benchmark: str  # what `benchmark.name` is
    what: str  # one line
    page: str  # of the data's authors
    licence: str
    sources: Mapping[str, str]  # file -> address; "": the page has it, for people
    cut: Cut | None = None  # None: the files are taken as they are
    note: str = ""  # what of the cut is known, and what is not


@cache
def hashes() -> Mapping[str, Mapping[str, str]]:
    """Recipe -> file -> SHA-256 of what the tables were made with."""
    return parse_json(resources.files(__name__).joinpath("hashes.json").read_bytes())


@cache
def recipes() -> Mapping[str, Recipe]:
    """Every recipe by its name."""
    tables = tomllib.loads(resources.files(__name__).joinpath("recipes.toml").read_text(encoding="utf-8"))
    made = {}
    for name, table in tables.items():
        if under := table.pop("under", ""):  # the folder of files that are taken as they are
            table["sources"] = {file: f"{under}/{quote(file)}" for file in hashes()[name]}
        cut = getattr(cuts, table.pop("cut")) if "cut" in table else None
        made[name] = Recipe(**{"benchmark": name, **table, "cut": cut})
    return made


def named(name: str) -> Recipe:
    """A recipe; UserError for a name that there is not."""
    if name not in recipes():
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(sorted(recipes()))}")
    return recipes()[name]


def described(name: str) -> str:
    """What a recipe does: data, page, licence, addresses, and what is known of its cut."""
    recipe = named(name)
    rule = " ".join((recipe.cut.__doc__ or "").split()) if recipe.cut else "The files are taken as they are."
    sources = [f"  {file}: {address or 'by hand from the page'}" for file, address in recipe.sources.items()]
    shown = [*sources[:5], f"  and {len(sources) - 5} more"] if len(sources) > 6 else sources
    lines = [recipe.what, f"page: {recipe.page}", f"licence: {recipe.licence}", "files:", *shown, rule]
    return "\n".join([*lines, *([recipe.note] if recipe.note else [])])


def make(name: str, out: Path, given: Path | None = None) -> list[str]:
    """Downloads a recipe's files, or takes them from the folder `given`, and writes the benchmark to `out`.

    Returns what is to be said of it, as `check`.

    Raises UserError: `out` exists, a file is missing, a hash differs, no connection.
    """
    recipe = named(name)
    folder = given or cache_folder() / "downloads" / name
    with new_folder(out) as partial:
        for file, address in recipe.sources.items():
            known = hashes()[name].get(file) if recipe.cut is None else None
            if given is None and address:
                download(address, folder / file, known)
            if not (path := folder / file).is_file():
                raise UserError(
                    f"{path} is not there; get {path.name} from {recipe.page} and run "
                    f"pbr-jax data recipe {name} --from {path.parent} --out FOLDER"
                )
            if recipe.cut is None:
                target = partial / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if recipe.cut is not None:
            recipe.cut(folder, partial)
    return check(name, out)


def check(name: str, folder: Path) -> list[str]:
    """A line for each file that is missing or differs from what the tables were made with, then a verdict.

    Raises UserError where `folder` is no folder.
    """
    named(name)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the one that `data recipe {name} --out` wrote")
    found = []
    for file, wanted in hashes()[name].items():
        path = folder / file
        if not path.is_file():
            found.append(f"{file}: missing")
        elif sha256(path) != wanted:
            found.append(f"{file}: differs from the file of the tables")
    count = len(hashes()[name])
    verdict = f"{count - len(found)} of {count} files are those that the tables were made with"
    return [*found, verdict]


def download(address: str, path: Path, wanted: str | None = None) -> None:
    """Writes what is at `address` to `path`, unless a file with that hash, or with no known hash, is there.

    Raises UserError: no connection, an error of the server, another SHA-256 hash than `wanted`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), f"waiting for another process that downloads {path}"):
        if path.is_file() and wanted in (None, sha256(path)):
            return
        part = path.with_name(f"{path.name}.part")
        _fetch(address, part)
        if wanted is not None and (found := sha256(part)) != wanted:
            part.unlink()
            raise UserError(
                f"{address} has the SHA-256 {found[:12]}..., want {wanted[:12]}...: its authors changed it, "
                "or it was cut short; get the former version by hand and name its folder with --from"
            )
        part.replace(path)


def _fetch(address: str, part: Path) -> None:
    import httpx2

    plain = {"Accept-Encoding": "identity"}  # whose length is the file's
    try:
        with httpx2.stream("GET", address, headers=plain, follow_redirects=True, timeout=_TIMEOUT) as reply:
            if reply.status_code != 200:
                raise UserError(
                    f"{address} answers {reply.status_code}; get the file by hand and name its folder "
                    "with --from"
                )
            left = reply.headers.get("Content-Length", "")
            total = int(left) if left.isdigit() else None
            with part.open("wb") as file, terminal.bar(desc=part.stem, total=total, unit="B") as bar:
                for block in reply.iter_bytes(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
    except httpx2.RequestError as error:
        raise UserError(
            f"{address} cannot be read ({type(error).__name__}); repeat the command, or get the file by hand "
            "and name its folder with --from"
        ) from error


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
