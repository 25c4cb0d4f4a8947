"""Exports a run in the format of another program: `pbr_jax.export` and `pbr-jax export`."""

from pathlib import Path
from typing import Literal, get_args

from pbr_jax.base.files import new_folder
from pbr_jax.base.types import UserError
from pbr_jax.experiment.learned_state import write_state
from pbr_jax.exporting.models import write_adapter, write_encoder
from pbr_jax.exporting.tables import write_rankings, write_tables

Format = Literal["trec", "ranx", "csv", "parquet", "sentence-transformers", "adapter", "state"]


def export(
    run: str | Path, out: str | Path, format: Format, *, slot: str | None = None, blocks: int | None = None
) -> Path:
    """Exports a finished run to a new folder and returns its path. If the export fails, no folder is left.

    Args:
      run: the folder of the run.
      out: the new folder. Only its owner can read it.
      format:
        trec: run.trec and qrels.trec, for trec_eval and ir_measures.
        ranx: run.json and qrels.json, for ranx.
        csv, parquet: tables of predictions and rankings.
        sentence-transformers: the tuned encoder of the run's retriever, with a model card.
        adapter: the LoRA adapter of the run's tuned generator, in PEFT's format.
        state: the state that the method in `slot` has learned from the run's stream.
      slot: only with "state": the slot of the method, such as "retrieve".
      blocks: only with "state": exports the state after this number of blocks. None: after all questions.

    Raises UserError if `run` is not a finished run, if it has nothing to export in this format, or if `out`
    already exists.
    """
    run, out = Path(run), Path(out)
    if format not in get_args(Format):
        raise UserError(f"format is {format!r}, want one of {', '.join(get_args(Format))}")
    if format == "state" and slot is None:
        raise UserError("a state is of one method; add --slot, such as --slot retrieve")
    if format != "state" and (slot, blocks) != (None, None):
        raise UserError(f"slot and blocks are of --format state, and format is {format}; leave them out")
    with new_folder(out) as folder:
        if format == "state":
            assert slot is not None
            write_state(folder, run, slot, blocks)
        elif format == "sentence-transformers":
            write_encoder(folder, run)
        elif format == "adapter":
            write_adapter(folder, run)
        elif format in ("trec", "ranx"):
            write_rankings(folder, run, format)
        else:
            write_tables(folder, run, format)
    return out
