"""Replace a layer's convolution by one input.

With a convolution an input's key, value or step size depends on the inputs before it. A model that
tracks a state needs the same effect of a token at every position, so training has made these
dependences small, or lets them cancel. Each input then gets its mean. In Mamba the whole
recurrence comes after the convolution, which may have learned to read an earlier input: the state
is then delayed by as many positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from statetrack.hardening.inputs import LayerInputs
from statetrack.models import SequenceModel


@torch.no_grad()
def without_convolution(model: SequenceModel, inputs: LayerInputs) -> Iterator[SequenceModel]:
    """Yield float64 models whose layer has no convolution, or one that only delays its input.

    An input has the mean of what came out of the convolution for it. Each model comes as it is and
    with a refitted output projection: neither is always better.
    """
    mixer, outputs = inputs.mixer(model), []
    with mixer.get_submodule("conv").register_forward_hook(
        lambda _, args, out: outputs.extend(out[0])
    ):
        _, before = inputs.run(model)
    for delay in mixer.conv_delays:
        means: list[Tensor] = [inputs.mean_by_input(part, delay) for part in outputs]
        made = inputs.replace_mixer(model, mixer.without_conv(inputs.x, means, delay))
        yield made
        yield inputs.with_output(made, before)
