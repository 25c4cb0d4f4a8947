"""Options of all parts of a run. The comment of each field becomes its description in the reference.

This package contains the checks and the base classes of the slots (`base`), and the options that several
methods share (`shared` and `training`). The options of a single method are in
its module in `pbr_jax.methods`. `pbr_jax.config` composes them into the configuration of a run.
"""

from pbr_jax.options.base import IDLE as IDLE
from pbr_jax.options.base import Expand as Expand
from pbr_jax.options.base import Generate as Generate
from pbr_jax.options.base import Learner as Learner
from pbr_jax.options.base import Method as Method
from pbr_jax.options.base import Neighbours as Neighbours
from pbr_jax.options.base import Options as Options
from pbr_jax.options.base import Retrieve as Retrieve
from pbr_jax.options.base import Select as Select
from pbr_jax.options.base import TrainingSplit as TrainingSplit
from pbr_jax.options.base import added as added
from pbr_jax.options.base import checked as checked
from pbr_jax.options.base import default_of as default_of
from pbr_jax.options.base import hints as hints
from pbr_jax.options.base import key_of as key_of
from pbr_jax.options.base import members_in as members_in
from pbr_jax.options.base import names_of as names_of
from pbr_jax.options.base import options_in as options_in
from pbr_jax.options.base import swapped as swapped
from pbr_jax.options.shared import LLM as LLM
from pbr_jax.options.shared import Benchmark as Benchmark
from pbr_jax.options.shared import Corpus as Corpus
from pbr_jax.options.shared import Encoder as Encoder
from pbr_jax.options.shared import Eval as Eval
from pbr_jax.options.shared import JudgeLLM as JudgeLLM
from pbr_jax.options.shared import OtherLLM as OtherLLM
from pbr_jax.options.shared import Prompt as Prompt
from pbr_jax.options.shared import Remarks as Remarks
from pbr_jax.options.shared import SelectLLM as SelectLLM
from pbr_jax.options.shared import Stream as Stream
from pbr_jax.options.shared import UserEncoder as UserEncoder
from pbr_jax.options.training import Distillation as Distillation
from pbr_jax.options.training import Feedback as Feedback
from pbr_jax.options.training import Labels as Labels
from pbr_jax.options.training import LUFLoss as LUFLoss
from pbr_jax.options.training import Optimizer as Optimizer
from pbr_jax.options.training import Training as Training
from pbr_jax.options.training import TunedGenerator as TunedGenerator
from pbr_jax.options.training import adapting as adapting
from pbr_jax.options.training import tuning as tuning
