from .api import check as check
from .api import import_table as import_table
from .api import report as report
from .api import run as run
from .base.types import Candidate as Candidate
from .base.types import Document as Document
from .base.types import Example as Example
from .base.types import Model as Model
from .base.types import UserError as UserError
from .config import Config as Config
from .experiment.forgetting import forget as forget
from .experiment.learned_state import backward_transfer as backward_transfer
from .experiment.opening import ask as ask
from .experiment.opening import open as open
from .experiment.results import Comparison as Comparison
from .experiment.results import Results as Results
from .experiment.results import compare as compare
from .exporting.export import export as export
from .sweeps.launcher import sweep as sweep
from .system import System as System

__version__: str
