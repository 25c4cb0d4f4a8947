"""The gain from a text about the user, alone and before retrieved documents (`prompt.profile`).

Rows: no text; a summary (Richardson et al., 2023); features, with contrasting examples of random others
(AP-Bots, 2025); differences to the most similar others (DPL, 2025); and a control, the summary of another
user. `alone` has no document in the prompt, `dense` has the four nearest ones. Only these texts are decoded,
so rows are compared by `target_nll`. The report shows how many tokens the text takes in a prompt, and how
many it took to write.

pbr-jax sweep ablations/profiles --benchmark.name lamp_7 --benchmark.root FOLDER --limit 60 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.options import Eval

KINDS: dict[str, Overrides] = {
    "none": {},
    "summary": {"prompt.profile": "summary"},
    "features": {"prompt.profile": "features"},
    "difference": {"prompt.profile": "difference"},
    "another_users": {"prompt.profile": "summary", "prompt.profile_whose": "other"},
}


def get_config() -> Config:
    return Config(
        collaboration="text",
        retrieve=retrieve.Dense(k=4),
        select=select.TopK(k=4),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    for kind, row in KINDS.items():
        yield {"system": f"alone_{kind}", "retrieve.method": "none", **row}
        yield {"system": f"dense_{kind}", **row}
