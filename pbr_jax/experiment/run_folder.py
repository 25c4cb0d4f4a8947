"""A run's folder: whose it is, and that nothing of anybody else's is lost in it.

`run.json` is the first file that a run writes and says what the run is of; the folder is the run's from then
on. A folder that holds anything else is left as it is.
"""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.base.files import cache_folder, open_private, parse_json, private_folder, written
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest
from pbr_jax.eval.run_files import RESULTS, flat, sealed, verified

OWNER = "run.json"
PREDICTIONS = "predictions.jsonl"
TEXTS = "texts.jsonl"
FILES = (OWNER, "config.json", PREDICTIONS, TEXTS, "results.json", "log.jsonl")
CORPUS = "corpus"  # the folder of documents that came and went since the run (`System.add`)
REMARKS = "remarks.sqlite"  # in it: the log of what users have told since (`System.observe`)
_RUNS = "runs.jsonl"  # in the cache: the folders of runs
_IDLE = ("benchmark.root", "keep_texts")
_LARGEST = 8  # differences that are named


@dataclass(frozen=True)
class RunFolder:
    """The folder `out`, for a run that `owner` describes: its identity, its config and its parts' hashes."""

    out: Path
    owner: Mapping[str, Any]

    def claim(self, *, overwrite: bool = False) -> None:
        """Makes the folder this run's.

        Raises:
          UserError: it holds another run, and `overwrite` is not given; or files that no run wrote.
        """
        try:
            private_folder(self.out)
            self._empty(overwrite=overwrite)
            self.sweep_up()
            if not (self.out / OWNER).exists():
                self.sign()
        except OSError as error:
            raise UserError(
                f"cannot write to the output folder {self.out}: {error.strerror}; choose another --out"
            ) from error

    def _empty(self, *, overwrite: bool) -> None:
        """Takes another run's files away where that is allowed; what is not a run's stays as it is."""
        there = sorted(path.name for path in self.out.iterdir() if not path.name.endswith(".partial"))
        ours = [name for name in there if name in FILES]
        for name in ours:
            if (self.out / name).is_symlink() or not (self.out / name).is_file():
                raise UserError(f"{self.out / name} is no plain file; choose another --out")
        if not there:
            return
        found = _read(self.out / OWNER)
        if found is None and (ours or not overwrite):
            raise UserError(
                f"{self.out} holds {', '.join(there[:4])}, which no run wrote that this version knows; "
                "choose a new --out" + ("" if ours else ", or put the run beside it with --overwrite")
            )
        if found is None or found["identity"] == self.owner["identity"]:
            return
        begun = not {"results.json", "predictions.jsonl"} & set(ours)  # of a run that failed: nothing is lost
        if not overwrite and not begun:
            raise UserError(
                f"{self.out} holds another run, which differs in {differences(found, self.owner)}; "
                "choose another --out, or replace it with --overwrite"
            )
        if (self.out / CORPUS / REMARKS).exists():
            raise UserError(
                f"{self.out / CORPUS} holds remarks of users, which --overwrite does not take away; choose "
                "another --out, or delete that folder first"
            )
        shutil.rmtree(self.out / CORPUS, ignore_errors=True)
        for name in reversed(FILES):  # the owner last: a kill leaves a folder that is still known
            if name in ours:
                (self.out / name).unlink()

    def sweep_up(self) -> None:
        """Takes away what `left_over` lists."""
        for path in self.left_over():
            path.unlink(missing_ok=True)

    def left_over(self) -> list[Path]:
        """What a run that was killed while it wrote left: half-written files, and texts without results."""
        left = [path for name in FILES for path in self.out.glob(f".{name}.*.partial")]
        finished = (self.out / RESULTS).is_file()
        texts = [] if finished else [self.out / PREDICTIONS, self.out / TEXTS]
        return [path for path in (*left, *texts) if path.is_file()]

    def sign(self) -> None:
        """Writes run.json, and the folder's place to the list of runs in the cache."""
        place = str(self.out.resolve())
        if place not in map(str, known_runs()):
            with open_private(cache_folder() / _RUNS) as file:
                file.write("\n" + json.dumps(place) + "\n")  # after a line that a kill left unfinished
        self.write(OWNER, json.dumps(self.owner, indent=1) + "\n")

    def finished(self) -> dict[str, Any] | None:
        """The content of results.json, where this run is complete and every file is what it wrote."""
        try:
            values = verified(self.out, whole=True)
        except UserError:
            return None
        fingerprint = values.get("fingerprint")
        recorded = fingerprint if isinstance(fingerprint, dict) else {}
        return values if self.owner["identity"].items() <= recorded.items() else None

    def finish(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Writes results.json, the last file, with the hashes of those beside it; returns its content."""
        content = sealed(self.out, values)
        self.write(RESULTS, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return content

    def write(self, name: str, text: str | Iterable[str]) -> None:
        """Writes one of the run's files, whole or not at all."""
        with written(self.out / name) as file:
            file.writelines([text] if isinstance(text, str) else text)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process writes to the folder, and keeps others waiting meanwhile."""
        folder = cache_folder() / "locks"
        private_folder(folder)
        waiting = f"{self.out}: waiting for another process that writes to it"
        with locked(folder / f"{digest(str(self.out.resolve()))}.lock", waiting):
            yield


def known_runs(*, there: bool = True) -> list[Path]:
    """The folders of runs that this cache has seen, and that are `there`, or are not."""
    file, folders = cache_folder() / _RUNS, list[Path]()
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):  # a line that a kill left unfinished
            folders.append(Path(json.loads(line)))
    return [folder for folder in folders if (folder / OWNER).is_file() == there]


def stage_keys(folder: Path) -> set[str] | None:
    """The keys of all stages that a run is made of, finished or not; None: an older version began it."""
    for name in (OWNER, RESULTS):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            return {*parse_json((folder / name).read_bytes())["keys"].values()}
    return None


def _read(path: Path) -> dict[str, Any] | None:
    """What a folder's owner says; None where it is none of ours."""
    try:
        found = parse_json(path.read_bytes())
        return found if isinstance(found["identity"], dict) and isinstance(found["config"], dict) else None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def altered(folder: Path, plan_parts: Mapping[str, Any], data: Mapping[str, str]) -> list[str]:
    """The data and parts (models, released files, options) that are not what the run in a folder used."""
    owner = _read(folder / OWNER)
    if owner is None:
        return []
    parts = owner.get("parts")
    before = {
        name: part.get("options")
        for name, part in (parts.items() if isinstance(parts, dict) else ())
        if isinstance(part, dict)
    }
    changed = [n for n, part in plan_parts.items() if n in before and before[n] != part.get("options")]
    return [*(n for n, value in data.items() if owner["identity"].get(n) != value), *changed]


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In words: the config's fields that differ, then the parts whose content or code does."""
    before, after = flat(found["config"]), flat(wanted["config"])

    def tells(name: str) -> bool:  # the options that only one of two methods has follow from the methods
        method = name.partition(".")[0] + ".method"
        one_sided = (name in before) != (name in after) and before.get(method) != after.get(method)
        return before.get(name) != after.get(name) and name not in _IDLE and not one_sided

    told = [
        f"{name} ({before.get(name)!r}, now {after.get(name)!r})"
        for name in dict.fromkeys([*before, *after])
        if tells(name) and ".from." not in name
    ]
    parts, now = found.get("parts") or {}, wanted["parts"]
    for what, word in (("options", "the content of"), ("code", "the code of")):
        changed = [n for n in now if n in parts and parts[n].get(what) != now[n].get(what)]
        if changed and not told:
            told.append(f"{word} {', '.join(changed[:_LARGEST])}")
    for name, value in wanted["identity"].items():
        if found["identity"].get(name) != value and not told:
            told.append({"evaluation": "the code of the evaluation"}.get(name, f"its {name}"))
    rest = f" and {len(told) - _LARGEST} more" if len(told) > _LARGEST else ""
    return ", ".join(told[:_LARGEST]) + rest
