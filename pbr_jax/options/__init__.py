"""Options: what every part of a run can be told, one comment a field, nothing hidden in the code.

Here stand the checks (`base`), the bases of the slots (`slots`) and the options that several methods share
(`shared`, `feedback`, `training`). A method's own options stand beside the method, in
`pbr_jax.methods`; `pbr_jax.config` composes them into a run.
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
from pbr_jax.options.luf import LUFLoss, adapting
from pbr_jax.options.remarks import Remarks
from pbr_jax.options.shared import (
    LLM,
    Benchmark,
    Encoder,
    Eval,
    JudgeLLM,
    OtherLLM,
    Prompt,
    SelectLLM,
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
