"""PBR as in its released code: PageRank without restarts, ten utterances, raw text for unreadable answers.

theta and k2 are the paper's. Its PersonaBench tables were made with them; the code's own defaults for that
benchmark are 0.5 and 5. For LongMemEval as the code reads and scores it: ablations/pbr_longmemeval.py.
"""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    own = expand.PBR(m=10, damping=1.0, iterations=50, on_failure="raw")
    return Config(system="pbr_as_released", expand=own, retrieve=retrieve.Dense(k=5))
