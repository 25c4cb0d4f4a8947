"""Functions for notebooks: `run`, `report`, `check` and `import_table`."""

import dataclasses
import difflib
import html
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pbr_jax import config as configs
from pbr_jax.base import terminal
from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import cache_folder, private_folder
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest
from pbr_jax.checking.check import PAGE
from pbr_jax.checking.check import check as checked
from pbr_jax.checking.verdict import Verdict
from pbr_jax.config import Benchmark, Config, Overrides
from pbr_jax.eval.report import report as written
from pbr_jax.experiment import run as experiment
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.results import Results, folder_of
from pbr_jax.importing import writing
from pbr_jax.importing.columns import Columns, from_names
from pbr_jax.importing.tables import Reading
from pbr_jax.importing.writing import Imported

Data = str | Path | Iterable[Any]
"""A folder of data, the file of a table, or rows: a pandas frame, a Hugging Face dataset or mappings."""
Names = Mapping[str, str | Sequence[str]]
"""Column names of a table by content, such as `{"user": "customer", "document": ["subject", "body"]}`."""

_RUNS = Path("runs")
_KEYWORDS = ("out", "overrides", "data", "columns", "benchmark", "k", "overwrite")


def run(
    config: str | Path | Config,
    out: str | Path | None = None,
    overrides: Overrides | None = None,
    *,
    data: Data | None = None,
    columns: Names | None = None,
    benchmark: str | Benchmark | None = None,
    k: int | None = None,
    overwrite: bool = False,
    **fields: Any,
) -> Results:
    """Runs one system and returns its results. If the run is already finished, its results are read::

        pbr_jax.run("bm25", data="mine", k=4)
        pbr_jax.run("dense", overrides={"retrieve.index": "exact"}, limit=50, seed=1)

    Args:
      config: a name from `pbr-jax configs`, the path of a config file, or a `Config`.
      out: the folder of the run. None: `runs/<system>-<hash>`, where the hash covers everything that the
        run depends on.
      overrides: values of fields by dotted name, as on the command line.
      data: the root folder of the benchmark. If no benchmark is named, it is your own data: a folder that
        `pbr-jax data import` wrote, the file of a table, or rows (a pandas frame, a Hugging Face dataset or
        mappings). Tables are imported into the folder `imported` of the cache.
      columns: names of those columns of a table that are not recognised by name, under the keys `user`,
        `input`, `output`, `time`, `id`, `document`, `query`, `history`, `relevant` and `category`
        (`pbr_jax.importing.columns.Columns`).
      benchmark: the name of the benchmark, such as "lamp_7".
      k: the number of documents in a prompt.
      overwrite: whether files of another run in `out` may be replaced.
      fields: any field of `Config`, such as `limit=50`, `seed=1` or `llm=LLM(...)`.

    Raises UserError for errors that the user can correct: invalid data, weights or fields, or an `out` that
    contains something else.
    """
    if isinstance(config, Config):
        start, file = config, None
    else:
        named = configs.load(configs.found(str(config)))
        start, file = named.config, named.path
    _check_names(fields)
    of = {"benchmark" if isinstance(benchmark, Benchmark) else "benchmark.name": benchmark}
    chosen = configs.override(start, {**fields, **(of if benchmark else {}), **(overrides or {})}, file)
    if data is not None:
        chosen = configs.override(chosen, _place(data, chosen.benchmark, columns))
    elif columns:
        raise UserError("columns is given, and no data; give the table as data, or leave columns out")
    if k is not None:
        chosen = configs.override(chosen, _shown(chosen, k))
    folder = _RUNS / f"{_plain(chosen.system)}-{Plan(chosen).name}" if out is None else out
    return experiment.run(chosen, folder, overwrite=overwrite)


class Report(str):
    """The text of a report. Notebooks display it as Markdown or HTML."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if not self.startswith("<!DOCTYPE html>"):
            return {"text/markdown": self, "text/plain": self}
        page = html.escape(self)  # a document of its own: its style and script stay in the frame
        frame = (
            f'<iframe srcdoc="{page}" title="Report" style="width: 100%; height: 45rem; border: 0"></iframe>'
        )
        return {"text/html": frame}


def report(*runs: Results | str | Path, format: str = "md", **options: Any) -> Report:
    """Writes a report on finished runs or folders of runs, and returns it as text::

        pbr_jax.report(zero_shot, dense)
        Path("report.html").write_text(pbr_jax.report("runs", format="html"))

    Args:
      runs: results of `pbr_jax.run`, folders of runs, or folders that contain runs.
      format: "md", "html", "latex" or "csv".
      options: `reference`, `rows`, `all_metrics` and `part` of `pbr_jax.eval.report.report`.
    """
    return Report(written([folder_of(run) for run in runs], format, **options))


@dataclass(frozen=True, repr=False)
class Checked:
    """The result of a check: its numbers (`verdict`), page in Markdown (`page`) and folder (`path`)."""

    path: Path
    verdict: Verdict
    page: str

    def __repr__(self) -> str:
        return terminal.visible(self.page)

    def _repr_markdown_(self) -> str:
        return self.page


def import_table(
    table: Data,
    out: str | Path,
    *,
    columns: Names | None = None,
    instruction: str = "",
    documents: Data | None = None,
    task: str = "",
    user_is: Literal["author", "recipient"] | None = None,
    encoding: str = "",
    date_format: str = "",
    same_id: Literal["refuse", "first", "last"] = "refuse",
    skip_bad: bool = False,
) -> Imported:
    """Writes a table as a folder of data, and returns how its columns were read, like `pbr-jax data import`::

        pbr_jax.import_table("tickets.csv", "mine", columns={"user": "customer"}, instruction="Answer it.")

    Args:
      table: a file, a folder of files, or rows (a pandas frame, a Hugging Face dataset or mappings).
      out: a new or empty folder.
      columns: as in `run`. Other columns are recognised by name.
      instruction: one sentence that tells the model what to do.
      documents: a table of documents. None: each row is a document for later questions of the same user.
      task: the name of a benchmark, or a TOML file, from which the wording and the metrics are taken.
      user_is: "author" if the user wrote the answers, as in mail; "recipient" if the user received them, as
        the customer of a helpdesk does. None: the wording is that for an author, and a note says so.
      encoding, date_format, same_id, skip_bad: how rows are read (`pbr_jax.importing.tables.Reading`).

    Raises UserError if `out` is not empty, or if columns or rows cannot be read.
    """
    given = from_names(columns or {})
    return writing.import_table(
        table,
        out,
        given,
        instruction,
        documents=documents,
        task=task,
        user_is=user_is,
        reading=Reading(encoding=encoding, date_format=date_format, same_id=same_id, skip_bad=skip_bad),
    )


def check(
    data: Data | Config,
    out: str | Path | None = None,
    *,
    columns: Names | None = None,
    benchmark: str | None = None,
    minutes: float = 10.0,
) -> Checked:
    """Tests whether documents of the user's own history improve the answers, and for which users::

        pbr_jax.check("mine", minutes=5)

    Args:
      data: as in `run`, or a `Config` whose benchmark, models and prompt are used.
      columns: as in `run`.
      out: the folder for the runs and the verdict. None: `runs/check-<name of the data folder>`.
      benchmark: the name of the benchmark, such as "lamp_7".
      minutes: the target for wall-clock time. The first round, of 25 questions, always runs.

    Raises UserError if nothing can be measured, and in the cases of `run`.
    """
    config = data if isinstance(data, Config) else Config()
    if benchmark is not None:
        config = configs.override(config, {"benchmark.name": benchmark})
    if not isinstance(data, Config):
        config = configs.override(config, _place(data, config.benchmark, columns))
    named = Path(config.benchmark.root).name or config.benchmark.name
    folder = _RUNS / f"check-{_plain(named)}" if out is None else Path(out)
    verdict = checked(config, folder, minutes)
    return Checked(folder, verdict, (folder / PAGE).read_text(encoding="utf-8"))


def _check_names(fields: Iterable[str]) -> None:
    known = [item.name for item in dataclasses.fields(Config)]
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, [*_KEYWORDS, *known], n=1)
            hint = f"did you mean {near[0]}?" if near else "dotted fields go into overrides={...}"
            raise UserError(f"run() has no argument {name!r}; {hint}")


def _place(data: Data, benchmark: Benchmark, columns: Names | None = None) -> dict[str, str]:
    """The fields that set the root of a benchmark. If no benchmark is named, it is the user's own data."""
    own = {"benchmark.name": "own"} if benchmark.name == Benchmark.name else {}
    if isinstance(data, str | Path) and (not own or not Path(data).is_file()):
        if columns:
            raise UserError(
                f"columns is given, and {data} is no table's file; leave columns out of a folder of data"
            )
        return {**own, "benchmark.root": str(data)}
    return {"benchmark.name": "own", "benchmark.root": str(_imported(data, from_names(columns or {})))}


def _imported(table: Data, columns: Columns) -> Path:
    """Imports a table into the cache, in a folder named by a hash of its content, and prints its columns."""
    place = cache_folder() / "imported"
    private_folder(place)
    with tempfile.TemporaryDirectory(dir=place, prefix=".") as scratch:
        made = writing.import_table(table, Path(scratch) / "made", columns)
        folder = place / digest({file.name: file_hash(file) for file in made.folder.iterdir()})
        if not folder.exists():
            made.folder.replace(folder)
    named = ", ".join(f"{what}: {name}" for what, name in made.columns.named.items())
    terminal.err(f"data: {made.questions} questions of {made.users} users; {named}; written to {folder}")
    for line in made.left_out:
        terminal.err(f"left out: {line}")
    return folder


def _shown(config: Config, k: int) -> dict[str, int]:
    """The fields that put `k` documents into a prompt. `retrieve.k` documents come from each user's history,
    and the selection keeps at most `select.k` of them."""
    retrieve, select = config.retrieve, config.select
    if retrieve.method == "none":
        raise UserError(f"k is {k}, and {config.system} shows no documents; leave k out")
    if select.k is None and config.neighbours.m == 1 and not config.benchmark.shares:
        return {"retrieve.k": k}
    return {"select.k": k, "retrieve.k": k if select.k is None else max(retrieve.k, k)}


def _plain(name: str) -> str:
    """A name with characters that are unsafe in a path replaced by hyphens, at most 80 characters."""
    return re.sub(r"[^\w.+-]+", "-", name)[:80]
