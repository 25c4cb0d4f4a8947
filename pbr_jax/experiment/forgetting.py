"""Forgets a user, or documents: in the cache, in run folders, and in data that are read later.

What stays are the source files, which are their owner's. From the first step on the cache leaves the user out
of what it reads (`reads.leave_out`). A stage of which the user's texts are a part is dropped with all that
was made of it (`artefacts.NEEDS`); the next run makes it anew without them. Whatever a kill leaves undone the
next call does, for the stores with the texts go last.
"""

import json
import math
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pbr_jax.base import words
from pbr_jax.base.files import cache_folder, parse_json, private_folder
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import NEEDS, place
from pbr_jax.corpus import vectors
from pbr_jax.corpus.store import Store
from pbr_jax.data.dates import parse_time
from pbr_jax.eval.run_files import RESULTS, flat, lines, read_json, verified
from pbr_jax.experiment.evaluation import by_source
from pbr_jax.experiment.opening import read_config
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.run import run
from pbr_jax.experiment.run_folder import CORPUS, PREDICTIONS, REMARKS, TEXTS, RunFolder, known_runs
from pbr_jax.llm import reads
from pbr_jax.remarks import changes
from pbr_jax.remarks.log import ANY_DATA, Log

GONE, _UNDER_WAY = ".forgotten", (".partial", ".damaged")  # ends of stages' folders
_STORE, _TRAINED = "store.sqlite", "training.json"  # in such a folder
_FORGETTING = "forgetting"  # in results.json while the files beside it are written anew
_SEALS = ("digest", "files", _FORGETTING)
_OUT_OF_REACH = (
    "source files, which another cache reads anew",
    "what other users' documents and shared documents say of the user",
    "exports, reports, pictures, terminal logs, files of keys, and copies of run folders and of the cache",
    "run folders that this cache does not know of and --run does not name",
    "folders pbr_jax-* that killed processes left among the system's temporary files",
    "requests that were sent to a server, backups, a file system's journal and freed blocks",
)


@dataclass
class Receipt:
    """What was forgotten, or would be (`dry`), and what lies out of reach.

    `stages` are those that were dropped, as NAME/KEY, and `trained` those among them that had learned from
    the data. `runs` have the lines that were removed (`lines`), and the documents and remarks that were added
    later. `sources` are the folders that the user's data were read from. With `before`, `user` may be "" for
    all: `older` documents of `owners` users are dated before it, and `undated` ones have no date and stay.
    """

    user: str
    documents: list[str]
    dry: bool
    before: str = ""
    older: int = 0
    owners: int = 0
    undated: int = 0
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    cache: str = ""
    stages: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    vectors: int = 0
    answers: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)
    retrained: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    out_of_reach: list[str] = field(default_factory=lambda: [*_OUT_OF_REACH])

    def text(self) -> str:
        """The receipt as JSON."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)


def forget(
    user: str = "",
    *,
    documents: Sequence[str] = (),
    before: str = "",
    runs: Iterable[str | Path] = (),
    retrain: bool = False,
    dry: bool = False,
) -> Receipt:
    """Forgets a user, or the documents of a user with these ids, or documents of all users before a date.

    Args:
      before: a date, such as 2026-11-29, whose midnight in UTC is meant. Documents whose date begins earlier
        are forgotten: those of the user, or of all users if none is given.
      runs: folders of runs beside those that this cache knows of.
      retrain: runs that knew the user are made anew in their folders, without the user.
      dry: nothing is changed.

    Raises UserError if neither the cache nor a run knows the user or one of the documents, provided that the
    data of all runs are in the cache.
    """
    if not (user or before) or "\0" in user:
        raise UserError(f"user is {user!r}, want a user's name, or a date (before)")
    moment = parse_time(before)
    if before and (moment is None or documents):
        raise UserError(f"before is {before!r}, want a date such as 2026-11-29, and no ids of documents")
    receipt = Receipt(user, [*documents], dry, before, cache=str(cache_folder()))
    given = [Path(path) for path in runs]
    if bad := [path for path in given if not (path / RESULTS).is_file() and not (path / CORPUS).is_dir()]:
        raise UserError(f"{bad[0]} is no finished run; give folders that `pbr-jax run --out` wrote")
    private_folder(cache_folder())
    with locked(cache_folder() / "forget.lock", "waiting for another process that forgets somebody"):
        folders = list(dict.fromkeys(path.resolve() for path in (*given, *known_runs())))
        receipt.user = user = _named(user, folders)
        wanted = _older(moment, receipt, folders) if moment is not None else {user: receipt.documents}
        leaving = _Leaving(wanted, moment, receipt)
        cleaned = folders if wanted else []
        roots, touched = leaving.stages(folders)
        if dry:
            receipt.runs = [told for path in cleaned if (told := leaving.clean(path, dry=True))]
            return receipt
        if wanted:
            reads.leave_out(wanted)
            leaving.drop(roots, touched)
        receipt.runs = [told for path in cleaned if (told := leaving.clean(path, dry=False))]
        for path in cache_folder().glob(f"*/*{GONE}") if wanted else ():  # the texts go last
            leaving.erase()
            shutil.rmtree(path)
        leaving.erase()  # what others, who saw the texts until now, have made since
    for path in filter(_lacks_data, folders if retrain else ()):
        try:
            if any(path.glob(f"{CORPUS}/*.sqlite")):
                raise UserError("documents were added to it since, which the new run would not have")
            run(read_config(path), path, overwrite=True)
            receipt.retrained.append(str(path))
        except UserError as error:
            receipt.out_of_reach.append(f"{path} is not made anew: {error}")
    return receipt


def _lacks_data(folder: Path) -> bool:
    """Whether a store of data that a run was made from is not in the cache."""
    keys = read_json(folder / RESULTS).get("keys", {}) if (folder / RESULTS).is_file() else {}
    data = [key for label, key in keys.items() if label.startswith(("data", "training_data"))]
    return any(not place("data", key).is_dir() for key in data)


def _older(moment: float, receipt: Receipt, folders: Sequence[Path]) -> dict[str, set[str]]:
    """The ids of the documents that are dated before a moment, by users. Data that the cache lacks are read
    anew first, for their dates."""
    for path in filter(_lacks_data, folders):
        why = "its data are not in the cache"
        try:
            if not receipt.dry:
                Plan(read_config(path))
        except UserError as error:
            why = str(error)
        if _lacks_data(path):
            receipt.out_of_reach.append(f"{path}: nobody knows the dates of its documents, for {why}")
    found: dict[str, set[str]] = {}
    undated = set[tuple[str, str]]()
    for file in _stores(folders):
        with closing(Store(file)) as store:
            for user, id, dated in store.by_user("id"):
                if receipt.user not in ("", user):
                    continue
                if dated is None:
                    undated.add((user, id))
                elif dated < moment:
                    found.setdefault(user, set()).add(id)
    receipt.older, receipt.owners, receipt.undated = sum(map(len, found.values())), len(found), len(undated)
    return found


class _Leaving:
    """Documents by users, or users with no ids of documents: all of theirs; and what was found of them.

    `before`: the moment before which the documents are dated, if they were found by it.
    """

    def __init__(self, wanted: Mapping[str, Collection[str]], before: float | None, receipt: Receipt) -> None:
        self.wanted, self.before, self.receipt = wanted, before, receipt
        self.texts: set[str] = set()
        self.in_data = False  # whether data have the user, if not the documents

    # -- the cache -------------------------------------------------------------------------------------

    def stages(self, folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """The stores of data that hold the texts, and the other stages that go with them.

        Raises UserError where nobody knows the user, or a document.
        """
        there = all_stages()
        roots = [name for name, path in _data().items() if self._read(path)]
        if self.before is None and not roots:
            self._refuse_unknown(folders)
        touched = _above(there, roots) if self.wanted else []
        for name in touched:
            for file in there[name].rglob("*.sqlite"):
                self.texts.update(_texts(file))
        self.receipt.stages = sorted({*roots, *touched})
        self.receipt.trained = [name for name in self.receipt.stages if (there[name] / _TRAINED).is_file()]
        return [there[name] for name in roots], [there[name] for name in touched]

    def _refuse_unknown(self, folders: Sequence[Path]) -> None:
        user, ids = self.receipt.user, self.receipt.documents
        in_runs = [found for path in folders if (found := self.clean(path, dry=True))]
        in_runs = [found for found in in_runs if not ids or found.get("documents")]
        gone = reads.left_out()
        again = gone and all(gone(user, id) for id in ids or [None])
        again = again or (reads.knows(user) and not (ids and self.in_data))
        if not (in_runs or again or any(map(_lacks_data, folders))):
            what = f"document {ids[0]!r} of user {user!r}" if ids else f"user {user!r}"
            raise UserError(
                f"{cache_folder()} and its runs know no {what}; give the name as the data have it"
            )

    def _read(self, path: Path) -> bool:
        """Whether a stage's store has some of the texts, which are kept in mind."""
        with closing(Store(path / _STORE)) as store:
            found, whole = self._texts_in(store)
            self.in_data |= bool(self.wanted.keys() & store.columns.codes.keys())
        return bool(found) or whole

    def _texts_in(self, store: Store) -> tuple[list[str], bool]:
        """The texts that a store has, which are kept in mind, and whether it has a user who goes whole."""
        known = [user for user in self.wanted if user in store.columns.codes]
        found = [text for user in known for text in store.texts_of(user, self.wanted[user] or None)]
        self.texts.update(found)
        return found, not all(self.wanted[user] for user in known)

    def drop(self, roots: Iterable[Path], touched: Iterable[Path]) -> None:
        """Takes stages away. Of what needs the roots nothing can be finished from here on (`obtain`)."""
        for path in roots:
            keep_marks(path / _STORE)  # of others, who may be forgotten before it is made anew
            with _making(path):
                if path.suffix != GONE:
                    shutil.rmtree(path.with_suffix(GONE), ignore_errors=True)
                    path.rename(path.with_suffix(GONE))
        there = all_stages()  # with what was finished meanwhile
        moment = None if self.before is None else math.nextafter(self.before, -math.inf)
        mine = ((self.receipt.user, text, moment) for text in self.texts)
        reads.keep_marks(mine, vectors.digest)  # of stores that go now
        for path in dict.fromkeys((*touched, *(there[name] for name in _above(there, ())))):
            with _making(path):
                shutil.rmtree(path, ignore_errors=True)
        if late := [path for path in _data().values() if path.suffix != GONE and self._read(path)]:
            self.drop(late, ())  # read before the user was left out, and finished just now

    def erase(self) -> None:
        """Erases vectors of the texts, and answers that may show them or of which nobody knows."""
        gone = reads.gone(self.receipt.user, self.before)
        self.receipt.vectors += vectors.erase(self.texts, reads.digests_in(gone))
        self.receipt.answers += reads.erase(self.texts, self.wanted, gone=gone, unknown=bool(self.wanted))

    # -- a run's folder --------------------------------------------------------------------------------

    def clean(self, folder: Path, *, dry: bool) -> dict[str, Any]:
        """Removes the user from a run's folder, and says what there was; empty: nothing."""
        told: dict[str, Any] = {}
        run_folder = RunFolder(folder, {})
        if (folder / RESULTS).is_file() or (not dry and run_folder.left_over()):
            with run_folder.alone():
                if not dry:
                    run_folder.sweep_up()
                try:
                    if (folder / RESULTS).is_file() and (removed := self._clean_lines(folder, dry)):
                        told["lines"] = removed
                except UserError as error:  # of files that the run did not write so
                    if (why := f"{folder} stays as it is: {error}") not in self.receipt.out_of_reach:
                        self.receipt.out_of_reach.append(why)
        for path in (folder / CORPUS).glob("*.sqlite"):
            if path.name != REMARKS:
                told |= self._clean_corpus(path, dry)
        log = folder / CORPUS / REMARKS
        if not dry and log.is_file():
            with Log(log, None).connected() as sql:
                Log.flag(sql, "data", ANY_DATA)
        return {"run": str(folder), **told} if told else {}

    def _clean_lines(self, folder: Path, dry: bool) -> int:
        """Removes questions from predictions.jsonl and texts.jsonl; how many there were."""
        values = read_json(folder / RESULTS)
        if not values.get(_FORGETTING):
            verified(folder)
        config = flat(read_json(folder / "config.json"))
        shown = self._shows(config)
        gone = {str(line["id"]) for line in lines(folder, PREDICTIONS) if shown(line)}
        if not gone and not values.get(_FORGETTING):
            return 0
        roots = [value for name, value in config.items() if name.startswith("benchmark.") and "root" in name]
        self.receipt.sources = sorted({*self.receipt.sources, *filter(None, roots)})
        if dry:
            return len(gone)
        run_folder = RunFolder(folder, {})
        values["forgotten"] = values.get("forgotten", 0) + len(gone)
        values["notes"] = [note for note in values.get("notes", ()) if "have no answer that" not in note]
        bare = {name: value for name, value in values.items() if name not in _SEALS}
        run_folder.write(RESULTS, json.dumps({**bare, _FORGETTING: True}) + "\n")
        for name in (TEXTS, PREDICTIONS):  # the lines of the second tell which are gone
            if not (folder / name).is_file():
                continue
            kept = (line for line in lines(folder, name) if str(line["id"]) not in gone)
            run_folder.write(name, (json.dumps(line, ensure_ascii=False) + "\n" for line in kept))
        run_folder.finish(bare)
        return len(gone)

    def _shows(self, config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
        """Whether a line may hold words of the user: it is of the user, where the whole user goes; it shows
        one of the documents, or a text that a model wrote from the user's, or from anybody's."""
        profile = config.get("prompt.profile", "none")
        written = profile not in ("none", "summary") or config.get("prompt.profile_whose") == "other"
        anyone = profile != "none" and written
        wanted = {user: {*ids} for user, ids in self.wanted.items()}
        learned = config.get("retrieve.remarks", "none") != "none"

        def shown(line: Mapping[str, Any]) -> bool:
            documents, ids = line.get("documents", ()), wanted.get(line["user_id"])
            whole = profile != "none" or not ids
            own = (one for d in documents if d["user_id"] in wanted for one in by_source(d))
            named = {str(line["id"]), *(id for group in line.get("relevant", ()) for id in group)}
            return (
                anyone
                or (ids is not None and (whole or bool(named & ids)))
                or any(not (ids := wanted[one["user_id"]]) or one["id"] in ids for one in own)
                or (learned and any(d["user_id"] == "" for d in documents))
            )

        return shown

    def _clean_corpus(self, path: Path, dry: bool) -> dict[str, Any]:
        """Removes the user from the documents and remarks that came after a run."""
        log_path = path.with_name(REMARKS)
        with closing(Store(path)) as store:
            log = Log(log_path, None) if log_path.is_file() else None
            whole = [user for user, ids in self.wanted.items() if not ids]
            remarks = [one for user in whole if log for one in log.remarks("user=?", user)]
            rated = any(
                user in self.wanted and (not self.wanted[user] or id in self.wanted[user])
                for user, id in (log.rated() if log else ())
            )
            texts, known = self._texts_in(store)
            if not (texts or remarks or rated or known):
                return {}
            if not dry:
                self._erase_in(store, log)
            return {"documents": len(texts), "remarks": len(remarks)}

    def _erase_in(self, store: Store, log: Log | None) -> None:
        rest = {user: [*ids] for user, ids in self.wanted.items()}
        if log is not None:
            for user, ids in self.wanted.items():
                if not ids:
                    changes.erase_user(store, log, user)
                for id in (id for id in ids if id.startswith(changes.MADE)):
                    changes.erase_document(store, log, id)
                    rest[user].remove(id)
            rest = {user: ids for user, ids in rest.items() if ids}
            log.forget_ratings((user, id) for user, ids in self.wanted.items() for id in ids)
        if rest:
            changes.forget(store, rest)


def keep_marks(store: Path) -> None:
    """Keeps by what the texts of a store are known, which is about to be deleted."""
    with closing(Store(store)) as texts:
        reads.keep_marks(texts.by_user("text"), vectors.digest)


def _named(user: str, folders: Iterable[Path]) -> str:
    """A user's name as the data have it, which need not be in NFC; else as it is stored of new users."""
    if (name := words.person(user)) not in ("", user):
        for path in _stores(folders):
            with closing(Store(path)) as store:
                if user in store.columns.codes:
                    return user
    return name or user


def _stores(folders: Iterable[Path]) -> list[Path]:
    """The files of stores of data in the cache, and of documents that came after runs."""
    corpora = [path for folder in folders for path in (folder / CORPUS).glob("*.sqlite")]
    data = [path / _STORE for path in _data().values()]
    return [*data, *(path for path in corpora if path.name != REMARKS)]


def all_stages() -> dict[str, Path]:
    """All stages in the cache, finished or not, by NAME/KEY; those of a deletion that was killed too."""
    found = {}
    for path in cache_folder().glob("*/*/"):
        if (path / "stage.json").is_file() or path.suffix in (*_UNDER_WAY, GONE):
            found["/".join(path.parts[-2:])] = path
    return found


def _data() -> dict[str, Path]:
    """Those of them that are stores of data, finished ones alone."""
    found = {name: path for name, path in all_stages().items() if path.suffix not in _UNDER_WAY}
    return {n: path for n, path in found.items() if path.parent.name == "data" and (path / _STORE).is_file()}


def _making(path: Path) -> AbstractContextManager[None]:
    """Waits until nobody makes a stage."""
    return locked(path.with_suffix(".lock"), f"waiting for another process that makes {path}")


def _above(there: Mapping[str, Path], roots: Iterable[str]) -> list[str]:
    """The stages that need one of these, or one that is not there any more, or whose needs are unknown."""
    needs = {name: needs_of(path) for name, path in there.items()}
    gone = set(roots)
    while new := [
        name
        for name, needed in needs.items()
        if name not in gone and (needed is None or any(one in gone or one not in there for one in needed))
    ]:
        gone.update(new)
    return sorted(gone - set(roots))


def needs_of(path: Path) -> list[str] | None:
    """What a stage is made from; None: it was made before this was noted, or is not begun."""
    if path.suffix == GONE:
        return []
    if path.suffix in _UNDER_WAY and path.parent.name == "data":
        return None
    try:
        return parse_json((path / NEEDS).read_bytes())
    except (FileNotFoundError, ValueError):
        pass
    try:
        needs = parse_json((path / "stage.json").read_bytes())["key"].get("needs")
        return None if needs and path.parent.name != "data" else []
    except (FileNotFoundError, ValueError, KeyError, AttributeError):
        return None


def _texts(file: Path) -> Iterator[str]:
    """The texts of a store of a stage's own; none in another database."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            yield from (text for (text,) in connection.execute("SELECT text FROM texts WHERE text NOT NULL"))
        except sqlite3.DatabaseError:
            return
