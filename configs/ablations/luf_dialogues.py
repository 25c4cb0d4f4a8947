"""Dialogue states with and without a store of what the user said: LUF's Table 4.

`no_store` answers from the conversation alone. `dense` shows earlier turns unchanged. `summaries` shows the
model's summaries of them (LUF's personal store). `query2doc`, `rewrite` and `rafe` search the store with an
expanded turn. Rows are compared by `jga` and `aga`. How to use a sample of whole dialogues:
docs/reference/data_format.md.

pbr-jax sweep ablations/luf_dialogues --benchmark.name sgd --benchmark.split test --benchmark.root FOLDER \\
    --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import retrieve
from pbr_jax.options import Eval, Prompt

# A round of turns at a time, of many dialogues; only the latest store is kept on disk.
STORE: Overrides = {"retrieve.method": "summaries", "stream.size": 512, "stream.order": "by_round",
                    "stream.keep": 1}  # fmt: skip


def get_config() -> Config:
    # At most five documents in every row. The slots of a service and a conversation of SGD have at most
    # some 600 tokens; MultiWOZ, which lists the slots of several, needs 2048. Targets are not scored.
    return Config(retrieve=retrieve.Dense(k=5), prompt=Prompt(max_tokens=1024), eval=Eval(likelihood="off"))


def sweep() -> Iterator[Overrides]:
    yield {"system": "no_store", "retrieve.method": "none"}
    yield {"system": "dense"}
    yield {"system": "summaries", **STORE}
    for method in ("query2doc", "rewrite", "rafe"):
        yield {
            "system": f"summaries, {method}",
            "expand.method": method,
            "expand.max_new_tokens": 64,
            **STORE,
        }
