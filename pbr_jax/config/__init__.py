"""What a run is made of.

A config file is Python with `get_config() -> Config` and optionally `sweep()`, which yields dotted overrides.
The resolved config is saved as JSON in the run's folder. Methods and their options: `pbr_jax.methods`.
"""

from pbr_jax.config.reading import CHOSEN as CHOSEN
from pbr_jax.config.reading import ConfigFile as ConfigFile
from pbr_jax.config.reading import Overrides as Overrides
from pbr_jax.config.reading import choose as choose
from pbr_jax.config.reading import found as found
from pbr_jax.config.reading import from_dict as from_dict
from pbr_jax.config.reading import load as load
from pbr_jax.config.reading import named as named
from pbr_jax.config.reading import overridden as overridden
from pbr_jax.config.reading import override as override
from pbr_jax.config.reading import to_dict as to_dict
from pbr_jax.config.schema import SLOTS as SLOTS
from pbr_jax.config.schema import Config as Config
from pbr_jax.config.schema import name_of as name_of
from pbr_jax.config.schema import names as names
from pbr_jax.config.schema import unknown as unknown
from pbr_jax.config.schema import values as values
from pbr_jax.options import LLM as LLM
from pbr_jax.options import Benchmark as Benchmark
from pbr_jax.options import Distillation as Distillation
from pbr_jax.options import Encoder as Encoder
from pbr_jax.options import Eval as Eval
from pbr_jax.options import Feedback as Feedback
from pbr_jax.options import Optimizer as Optimizer
from pbr_jax.options import Prompt as Prompt
from pbr_jax.options import Stream as Stream
from pbr_jax.options import Training as Training
from pbr_jax.options import TunedGenerator as TunedGenerator
from pbr_jax.options import UserEncoder as UserEncoder
from pbr_jax.options import tuning as tuning
