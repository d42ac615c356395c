"""The public names of the package; `statetrack.__init__` loads this module on first use.

Those of language models need the extra `lm`, whose packages load when one of them is used.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from statetrack import automata as automata
from statetrack import layers as layers
from statetrack import ops as ops
from statetrack import tasks as tasks
from statetrack.allocator import tune_allocator as tune_allocator
from statetrack.compiler import compile as compile
from statetrack.compiler import load as load
from statetrack.diagnosis import diagnose as diagnose
from statetrack.errors import UserError as UserError
from statetrack.explanation import explain as explain
from statetrack.hardening import harden as harden
from statetrack.layers import *  # noqa: F403
from statetrack.models import ExpertsConfig as ExpertsConfig
from statetrack.models import ModelConfig as ModelConfig
from statetrack.models import SequenceModel as SequenceModel
from statetrack.models import chunk_cross_entropy as chunk_cross_entropy
from statetrack.models import chunked_backward as chunked_backward
from statetrack.models import chunked_forward as chunked_forward
from statetrack.ops import *  # noqa: F403
from statetrack.tasks import make_task as make_task
from statetrack.training import Run as Run
from statetrack.training import RunConfig as RunConfig
from statetrack.training import Stage as Stage
from statetrack.training import TrainingConfig as TrainingConfig
from statetrack.training import evaluate as evaluate
from statetrack.training import train as train

if _TYPE_CHECKING:
    from statetrack.lm import StateTrackCache as StateTrackCache
    from statetrack.lm import StateTrackConfig as StateTrackConfig
    from statetrack.lm import StateTrackForCausalLM as StateTrackForCausalLM
    from statetrack.lm import StateTrackModel as StateTrackModel
    from statetrack.lm import load_language_model as load_language_model
else:

    def __getattr__(name: str) -> object:
        from statetrack import lm

        if name not in lm.PUBLIC:
            raise AttributeError(f"module 'statetrack.api' has no attribute {name!r}")
        return getattr(lm, name)
