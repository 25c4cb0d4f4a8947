"""PBR as its released code has it: PageRank without restarts, ten utterances.

theta and k2 are the paper's, with which its PersonaBench tables were made; the code's own defaults for that
benchmark are 0.5 and 5. For LongMemEval it shows the model ten documents: `--expand.k1 10`.
"""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    own = expand.PBR(m=10, damping=1.0, iterations=50)
    return Config(system="pbr_as_released", expand=own, retrieve=retrieve.Dense(k=5))
