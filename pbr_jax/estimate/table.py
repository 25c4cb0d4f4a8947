"""The estimate of a run as a table."""

from collections.abc import Sequence

from pbr_jax.base.tables import SmallTable
from pbr_jax.base.types import UserError
from pbr_jax.estimate.chips import CHIPS, UTILISATION, chip
from pbr_jax.estimate.sizes import Row

_HEADER = ("stage", "model", "prompts", "tokens read", "written, at most", "FLOPs", "time")


def table(rows: Sequence[Row], name: str = "h100", utilisation: float = UTILISATION) -> str:
    """The rows, their sum, and the time on other chips, each with one chip that reaches `utilisation`.

    Raises UserError for a chip that is not known, and a share that is none.
    """
    known = chip(name)
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation is {utilisation:g}, want a share above 0 and up to 1")
    if not rows:
        return "no model is asked: what the run needs is there"

    def time(name: str, rows: Sequence[Row]) -> str:
        seconds = sum(row.work.seconds(CHIPS[name], row.dtype, utilisation) for row in rows if row.work)
        unit, size = next(pair for pair in (("h", 3600), ("min", 60), ("s", 0)) if seconds >= 2 * pair[1])
        return f"{seconds / (size or 1):.3g} {unit}"

    def cells(row: Row) -> list[str]:
        if not row.model:
            return [row.stage, *[""] * 6]
        done = ["", ""] if row.work is None else [f"{row.work.flops:.3g}", time(name, [row])]
        return [row.stage, row.model, f"{row.prompts:,}", f"{row.read:,}", f"{row.written:,}", *done]

    flops = sum(row.work.flops for row in rows if row.work)
    total = [
        "all",
        "",
        *(f"{sum(getattr(row, n) for row in rows):,}" for n in ("prompts", "read", "written")),
    ]
    others = ", ".join(f"{other} {time(other, rows)}" for other in CHIPS if other != name)
    notes = [
        f"Time on one {name} (bfloat16 {known.bfloat16 / 1e12:.4g}, float32 {known.float32 / 1e12:.4g} "
        f"TFLOP/s at its peak) that reaches {utilisation:.0%} of it; on others: {others}.",
        "What prompts begin with in common is read once by the engine, and counted in full here.",
        *(f"{', '.join(stages)}: {note}" for note, stages in _notes(rows).items()),
    ]
    lines = [*map(cells, rows), [*total, f"{flops:.3g}", time(name, rows)]]
    return SmallTable("What the run has yet to ask of models", _HEADER, lines, notes).text()


def _notes(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The stages that each note is of."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        notes.setdefault(row.note, []).append(row.stage)
    return {note: stages for note, stages in notes.items() if note}
