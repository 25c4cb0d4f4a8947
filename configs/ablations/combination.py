"""What each part of the memory retriever (configs/memory.py) is worth, on questions about conversations.

The first row is the best of ablations/memory. Rows below "memory" change one thing in it.

pbr-jax sweep ablations/combination --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --generate.method none --eval.likelihood off --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides, found, load

_KEPT: Overrides = {"retrieve.of.dense.names": "keep"}
_ASKED: Overrides = {f"retrieve.of.{part}.question_words": "keep" for part in ("bm25", "bm25_2")}
_EVEN: Overrides = {"retrieve.weights": ()}
_FUSED: Overrides = {
    "retrieve.of": ["bm25", "dense"],
    "retrieve.of.bm25.analyser": "words",
    "retrieve.of.bm25.question_words": "keep",
}
_DENSE: Overrides = {"retrieve.method": "dense", "retrieve.k": 10}
ROWS: dict[str, Overrides] = {
    "fused, passages": {**_FUSED, **_KEPT, **_EVEN},
    "equal weights, names and question words kept": {**_KEPT, **_ASKED, **_EVEN},
    "memory": {},
    "names kept": _KEPT,
    "names out": {"retrieve.of.dense.names": "out"},
    "question words kept": _ASKED,
    "equal weights": _EVEN,
    "dense passages alone, names kept": _DENSE,
    "dense passages alone": {**_DENSE, "retrieve.names": "i"},
}


def get_config() -> Config:
    return load(found("memory")).config


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        yield {"system": name, **row}
