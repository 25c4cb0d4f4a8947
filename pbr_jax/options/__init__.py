"""Options of all parts of a run. The comment of each field becomes its description in the reference.

This package contains the checks (`base`), the base classes of the slots (`slots`) and the options that
several methods share (such as `shared`, `feedback` and `training`). The options of a single method are in
its module in `pbr_jax.methods`. `pbr_jax.config` composes them into the configuration of a run.
"""

from pbr_jax.options.base import (
    IDLE,
    Options,
    TrainingSplit,
    added,
    checked,
    default_of,
    hints,
    key_of,
    members_in,
    options_in,
)
from pbr_jax.options.corpus import Corpus
from pbr_jax.options.feedback import Distillation, Feedback
from pbr_jax.options.generator import TunedGenerator
from pbr_jax.options.labels import Labels
from pbr_jax.options.llm import LLM, JudgeLLM, OtherLLM, SelectLLM
from pbr_jax.options.luf import LUFLoss, adapting
from pbr_jax.options.remarks import Remarks
from pbr_jax.options.shared import (
    Benchmark,
    Encoder,
    Eval,
    Prompt,
    UserEncoder,
)
from pbr_jax.options.slots import (
    Expand,
    Generate,
    Learner,
    Method,
    Neighbours,
    Retrieve,
    Select,
    names_of,
    swapped,
)
from pbr_jax.options.stream import Stream
from pbr_jax.options.training import Optimizer, Training, tuning

__all__ = [
    "IDLE",
    "LLM",
    "Benchmark",
    "Corpus",
    "Distillation",
    "Encoder",
    "Eval",
    "Expand",
    "Feedback",
    "Generate",
    "JudgeLLM",
    "LUFLoss",
    "Labels",
    "Learner",
    "Method",
    "Neighbours",
    "Optimizer",
    "Options",
    "OtherLLM",
    "Prompt",
    "Remarks",
    "Retrieve",
    "Select",
    "SelectLLM",
    "Stream",
    "Training",
    "TrainingSplit",
    "TunedGenerator",
    "UserEncoder",
    "adapting",
    "added",
    "checked",
    "default_of",
    "hints",
    "key_of",
    "members_in",
    "names_of",
    "options_in",
    "swapped",
    "tuning",
]
