"""What other users' questions teach about a user's own documents (LUF across users).

Labels are gold (supervision) on the asking user's own documents, so `collaboration` is text; no
document of one user is shown to another. Rows are compared by recall@5; look at the report's part
`recurring`, questions that other users ask word for word, apart.

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
