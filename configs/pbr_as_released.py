"""PBR as its released code has it: PageRank without restarts, ten utterances, raw text where no list is.

theta and k2 are the paper's, with which its PersonaBench tables were made; the code's own defaults for that
benchmark are 0.5 and 5. LongMemEval as it reads and scores it: ablations/pbr_longmemeval.py.
"""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    own = expand.PBR(m=10, damping=1.0, iterations=50, on_failure="raw")
    return Config(system="pbr_as_released", expand=own, retrieve=retrieve.Dense(k=5))
