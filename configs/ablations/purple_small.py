"""configs/purple_small.py and what it must beat, with one and with three records in the prompt.

Rows of equal k are compared by `target_nll`; nothing is decoded. "ceiling" reads the answers: it shows the
records with the highest likelihood of the target when shown alone.

pbr-jax sweep ablations/purple_small --benchmark.name lamp_7 --benchmark.root FOLDER --limit 150 --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Eval, Overrides
from pbr_jax.methods import generate

HERE = Path(__file__).parent
PLAIN = {"collaboration": "none", "select.method": "top_k"}
LEARNED = {"select.method": "purple"}


def get_config() -> Config:
    config = runpy.run_path(str(HERE.parent / "purple_small.py"))["get_config"]()
    return dataclasses.replace(config, generate=generate.Nothing(), eval=Eval(likelihood="on"))


def sweep() -> Iterator[Overrides]:
    for k in (1, 3):
        plain = ("random", "bm25_lamp", "bm25")
        rows: dict[str, Overrides] = {name: {"retrieve.method": name, **PLAIN} for name in plain}
        rows["dense"] = PLAIN
        rows |= {name: {**PLAIN, "select.method": name} for name in ("rankgpt", "icr")}
        rows["ceiling"] = {**PLAIN, "select.method": "oracle"}
        rows["pointwise learner"] = {**LEARNED, "select.num_layers": 0, "select.learns_from": "singles"}
        rows["purple"] = LEARNED
        for name, row in rows.items():
            yield {"system": f"{name}, k {k}", "select.k": k, **row}
