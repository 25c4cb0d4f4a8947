"""What a run is made of.

A config file is Python with `get_config() -> Config` and optionally `sweep()`, which yields dotted overrides.
The resolved config is saved as JSON in the run's folder; its hash names the run.
"""

from pbr_jax.artefacts import digest
from pbr_jax.config.reading import (
    ConfigFile,
    Overrides,
    from_dict,
    load,
    names,
    override,
    to_dict,
    unknown,
)
from pbr_jax.config.schema import (
    LLM,
    Benchmark,
    Config,
    Encoder,
    Eval,
    Expand,
    Feedback,
    Generate,
    Lesson,
    Neighbours,
    Optimizer,
    Prompt,
    Reranker,
    Retrieve,
    Retriever,
    Select,
    Training,
    UserEncoder,
)

__all__ = [
    "LLM",
    "Benchmark",
    "Config",
    "ConfigFile",
    "Encoder",
    "Eval",
    "Expand",
    "Feedback",
    "Generate",
    "Lesson",
    "Neighbours",
    "Optimizer",
    "Overrides",
    "Prompt",
    "Reranker",
    "Retrieve",
    "Retriever",
    "Select",
    "Training",
    "UserEncoder",
    "digest",
    "from_dict",
    "load",
    "names",
    "override",
    "to_dict",
    "unknown",
]
