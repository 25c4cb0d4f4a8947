"""Predictions and rankings as tables, and as trec_eval, ir_measures and ranx read them.

Those of the latter are of documents: several passages of one count at the first one's rank, as in our own
metrics."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.files import write_text, written
from pbr_jax.base.types import Example, UserError
from pbr_jax.eval.run_files import flat, lines, verified
from pbr_jax.experiment.evaluation import by_source, known_id
from pbr_jax.experiment.opening import plan_of

_LARGEST = 1e38  # of single precision


class Ranked(NamedTuple):
    """A question: the scores of its documents by id, each lower than the one before, and the relevant ids."""

    id: str
    scores: dict[str, float]
    relevant: tuple[str, ...]


def write_rankings(folder: Path, run: Path, format: Literal["trec", "ranx"]) -> None:
    """Writes run.trec and qrels.trec, or run.json and qrels.json, of a finished run.

    They hold the scored questions whose relevant documents are known, from which our means are. Where none
    are known there is a run alone, of all questions.

    Raises UserError where the run has no rankings, and where its data is not as it was.
    """
    system = verified(run)["system"]
    examples = [*plan_of(run).data.value.examples()]
    found = [
        Ranked(example.id, strictly_falling(line["documents"], example.user_id), _relevant(example))
        for example, line in zip(examples, lines(run), strict=True)
    ]
    if not any(one.scores for one in found):
        raise UserError(f"{run}: it ranked no documents; export a run whose retrieve.method is not none")
    judged = [one for one, e in zip(found, examples, strict=True) if e.scored and one.relevant]
    kept = judged or found
    if format == "trec":
        write_text(folder / "run.trec", "".join(_trec_run(kept, system)))
    else:
        write_text(folder / "run.json", json.dumps({one.id: one.scores for one in kept}, indent=0))
    if judged and format == "trec":
        write_text(folder / "qrels.trec", "".join(_trec_qrels(judged)))
    elif judged:
        qrels = {one.id: dict.fromkeys(one.relevant, 1) for one in judged}
        write_text(folder / "qrels.json", json.dumps(qrels, indent=0))
    _tell(judged, examples)


def _tell(judged: Sequence[Ranked], examples: Sequence[Example]) -> None:
    """Notes on what these formats do not say."""
    if not judged:
        terminal.err("note: the data names no relevant documents, so there are no qrels")
    elif len(judged) < len(examples):
        left = len(examples) - len(judged)
        terminal.err(f"note: {left} questions that are not scored or have no relevant document are left out")
    kept = {one.id for one in judged}
    several = sum(any(len(g) > 1 for g in e.relevant) for e in examples if e.id in kept)
    if several:
        terminal.err(
            f"note: {several} questions accept any one of several documents, which qrels cannot say: there "
            "all of them are wanted, so recall and ndcg of other programs are lower than ours"
        )
    empty = sum(not one.scores for one in judged)
    if empty:
        terminal.err(f"note: {empty} questions have no ranked document; count them as 0 (trec_eval -c)")


def strictly_falling(documents: Iterable[Mapping[str, Any]], user: str) -> dict[str, float]:
    """Scores of the documents ranked for a user by id, in single precision, which trec_eval compares.

    Other programs order documents by their scores alone, and tied ones in their own ways. So a score that is
    not lower than the one before gives way to the next lower number. A document counts at its first place.
    """
    found: dict[str, float] = {}
    before = np.float32(np.inf)
    for told in documents:
        for one in by_source(told):
            if (id := known_id(one, user)) not in found:
                score = np.float32(np.clip(told["score"], -_LARGEST, _LARGEST))
                before = min(score, np.nextafter(before, np.float32(-np.inf)))
                found[id] = float(before)
    return found


def _relevant(example: Example) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id for group in example.relevant for id in group))


def _trec_run(found: Iterable[Ranked], system: str) -> Iterator[str]:
    for one in found:
        for rank, (id, score) in enumerate(one.scores.items(), 1):
            yield f"{_word(one.id)} Q0 {_word(id)} {rank} {score:.9g} {_word(system)}\n"


def _trec_qrels(found: Iterable[Ranked]) -> Iterator[str]:
    for one in found:
        yield from (f"{_word(one.id)} 0 {_word(id)} 1\n" for id in one.relevant)


def _word(id: str) -> str:
    """An id as TREC's files can hold it: white space, control characters and % as in addresses (%20)."""
    return re.sub(r"[\s%\x00-\x1f\x7f]", lambda found: quote(found[0], safe=""), id)


Table = dict[str, list[Any]]
"""Columns of equal length by their names; None where a row has nothing there."""


def write_tables(folder: Path, run: Path, format: Literal["csv", "parquet"]) -> None:
    """Writes `predictions` and `rankings` of a finished run, whose data and models need not be there.

    The columns are the fields of predictions.jsonl; fields inside fields are dotted (`metrics.rouge1`),
    lists and probabilities are JSON. Both tables have the question's `id`.

    Raises UserError where pyarrow is missing that Parquet needs.
    """
    verified(run)
    for name, rows in (("predictions", _prediction_rows(run)), ("rankings", _ranking_rows(run))):
        table, file = columns(rows), folder / f"{name}.{format}"
        if format == "csv":
            with written(file) as lines:
                lines.writelines(_csv(table))
        else:
            _parquet(table, file)


def _prediction_rows(run: Path) -> Iterator[dict[str, Any]]:
    for line in lines(run):
        documents = line.pop("documents")
        if line.get("probabilities") is not None:
            line["probabilities"] = json.dumps(line["probabilities"], ensure_ascii=False)
        values = flat(line).items()
        lists = {name: json.dumps(v, ensure_ascii=False) for name, v in values if isinstance(v, list)}
        yield {**dict(values), **lists, "ranked": len(documents)}


def _ranking_rows(run: Path) -> Iterator[dict[str, Any]]:
    """`shown`: it stood in the prompt. `document_id` is the document's, of which a passage is the `span`.
    `sources` are JSON, and stand only where texts of their own were ranked."""
    for line in lines(run):
        for rank, told in enumerate(line["documents"], 1):
            start, end = told.get("span", (None, None))
            yield {
                "id": line["id"],
                "rank": rank,
                "document_id": told["id"],
                "document_user_id": told["user_id"],
                "score": told["score"],
                "shown": rank <= line["prompt_documents"],
                "span.start": start,
                "span.end": end,
                **({"sources": json.dumps(told["sources"])} if "sources" in told else {}),
                **{f"scores.{part}": score for part, score in told.get("scores", {}).items()},
            }


def columns(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The rows as columns, in the order in which their names first come."""
    table: Table = {}
    for place, row in enumerate(rows):
        for name in row:
            table.setdefault(name, [None] * place)
        for name, values in table.items():
            values.append(row.get(name))
    return table


def _csv(table: Table) -> Iterator[str]:
    yield _row(table)
    yield from map(_row, zip(*table.values(), strict=True))


def _row(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


def _parquet(table: Table, file: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{file.name}: Parquet needs pyarrow: pip install 'pbr-jax[parquet]'") from error
    parquet.write_table(pyarrow.table(table), file)
