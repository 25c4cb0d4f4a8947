"""How much other users' questions teach about a user's own documents (LUF across users).

Labels are gold labels (supervision) of the asking user's own documents, so `collaboration` is text. No
document of one user is shown to another. Rows are compared by recall@5. Look separately at the part
`recurring` of the report: questions that other users ask in the same words.

pbr-jax sweep ablations/luf_users --benchmark.name personabench --benchmark.root FOLDER \
    --benchmark.split noise_0.0 --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

FOLDS: Overrides = {"stream.size": None, "stream.order": "released", "stream.protocol": "cross_users"}
ROWS: dict[str, Overrides] = {
    "frozen": {"retrieve.method": "dense", "collaboration": "none"},
    "centred": {"retrieve.method": "centred"},
    "luf": {},
    "self": {"retrieve.labels.kind": "self"},
    "random 10": {"retrieve.labels.kind": "random_k"},
    "shuffled labels": {"retrieve.labels.kind": "shuffled"},
}


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "luf_small.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        yield {"system": name, "collaboration": "text", **FOLDS, **row}
