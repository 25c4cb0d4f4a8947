"""What a run is made of.

A config file is Python with `get_config() -> Config` and optionally `sweep()`, which yields dotted overrides.
The resolved config is saved as JSON in the run's folder. Methods and their options: `pbr_jax.methods`.
"""

from pbr_jax.config.fields import name_of, names, unknown, value_of
from pbr_jax.config.naming import named, overridden
from pbr_jax.config.packaged import found, listed
from pbr_jax.config.reading import (
    CHOSEN,
    ConfigFile,
    Overrides,
    choose,
    from_dict,
    load,
    override,
    to_dict,
)
from pbr_jax.config.schema import SLOTS, Config
from pbr_jax.options import (
    LLM,
    Benchmark,
    Distillation,
    Encoder,
    Eval,
    Feedback,
    Optimizer,
    Prompt,
    Stream,
    Training,
    TunedGenerator,
    UserEncoder,
    tuning,
)

__all__ = [
    "CHOSEN",
    "LLM",
    "SLOTS",
    "Benchmark",
    "Config",
    "ConfigFile",
    "Distillation",
    "Encoder",
    "Eval",
    "Feedback",
    "Optimizer",
    "Overrides",
    "Prompt",
    "Stream",
    "Training",
    "TunedGenerator",
    "UserEncoder",
    "choose",
    "found",
    "from_dict",
    "listed",
    "load",
    "name_of",
    "named",
    "names",
    "overridden",
    "override",
    "to_dict",
    "tuning",
    "unknown",
    "value_of",
]
