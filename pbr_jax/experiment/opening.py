"""Loads finished runs and configs to answer questions with them: `pbr_jax.open` and `pbr_jax.ask`."""

import contextlib
import os
import threading
from pathlib import Path

from pbr_jax.base import file_hashes
from pbr_jax.base.files import cache_folder
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, from_dict
from pbr_jax.corpus.carrying import carried
from pbr_jax.eval.run_files import HASHED, RESULTS, read_json, verified
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.run_folder import CORPUS, altered
from pbr_jax.graph.lists import stages
from pbr_jax.system import Reply, System

_opened: dict[tuple[object, ...], System] = {}
_opening = threading.Lock()


def open(what: str | Path | Config) -> System:
    """Loads the system of a config or of a finished run's folder. It ranks, answers and scores questions.

    The system of the last folder is kept in memory, and is loaded again after a change of the run's files,
    data or models.

    Raises:
      UserError: there is no finished run, or its files, data or models have changed since the run; for a
        config as in `pbr_jax.run`.
    """
    if isinstance(what, Config):
        plan = Plan(what)
        plan.check()
        return plan.system()
    if not isinstance(what, str | Path):
        raise UserError(f"found {what!r:.60}, want a run or a config; give a run's folder or a Config")
    folder = Path(what)
    if not folder.is_dir():
        raise UserError(f"no run folder at {what}; give a run's folder or a Config")
    key = (folder.resolve(), cache_folder())
    with _opening:  # threads that ask at once wait for one opening
        system = _opened.get(key)
        if system is not None:
            with contextlib.suppress(UserError):
                system.check()
                return system
        _opened.clear()
        _opened[key] = _open(folder)
        return _opened[key]


def _open(folder: Path) -> System:
    with file_hashes.watching() as files:
        for name in (RESULTS, *HASHED):
            if (folder / name).exists():
                file_hashes.watch(folder / name)
        plan = plan_of(folder)
        corpus = carried(plan.origin, folder / CORPUS / f"{plan.data.key}.sqlite")
        system = plan.system(corpus)
        if not plan.store.value.living and system.remarks.exists:
            system.remarks.catch_up()  # to what a killed process has told the log alone
    files.pop(os.path.abspath(folder), None)  # a corpus may come to stand in it
    cached = os.path.join(os.path.abspath(cache_folder()), "")
    for file in [file for file in files if os.fspath(file).startswith(cached)]:
        del files[file]  # stages look at their artefacts themselves, which may have been made just now

    def check() -> None:
        """Raises UserError if models, data or their cached results have changed since the run was opened."""
        found = file_hashes.changed(files)
        own = plan.store.value.living  # of a learner
        if not own and system.store.living != corpus.is_file():
            found.append(os.fspath(corpus))
        read = [stage for stage in stages(plan.last).values() if "value" in vars(stage)]
        found += [f"stage {stage.label} in the cache" for stage in read if not stage.is_made]
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise UserError(
                f"{folder}: what it is made of has changed since it was opened; open it again "
                f"(changed or gone: {', '.join(found[:3])}{more})"
            )

    system.check = check
    return system


def ask(folder: str | Path, user: str, query: str) -> Reply:
    """Answers one question of one user with the system, data and models of a finished run (`System.ask`)."""
    return open(folder).ask(user, query)


def plan_of(folder: Path) -> Plan:
    """The plan of a finished run. Raises UserError if its files, data or models have changed since."""
    plan = Plan(read_config(folder))
    plan.check()
    changed = altered(folder, plan.parts, plan.hashes)
    if changed:
        raise UserError(
            f"{folder}: what the run used has changed since ({', '.join(changed)}); "
            "run it anew, into another folder or with --overwrite"
        )
    return plan


def read_config(folder: Path) -> Config:
    """The resolved config of a finished run. Raises UserError if the run's files have changed since."""
    verified(folder)
    path = folder / "config.json"
    try:
        return from_dict(read_json(path))
    except UserError as error:
        raise error if str(folder) in str(error) else UserError(f"{path}: {error}") from error
