"""Products of delta-rule steps in plain torch: the chunkwise delta rule over all steps."""

from __future__ import annotations

import torch
from torch import Tensor

from statetrack.ops.delta_rule.chunk import delta_rule_chunk


def delta_product_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Same arguments and results as `delta_product_naive`.

    A token becomes n steps of which only the first has a gate and only the last is read.
    """
    n = k.shape[2]
    nothing = q[:, :, None].new_zeros(*q.shape[:2], n - 1, *q.shape[2:])
    queries = torch.cat([nothing, q[:, :, None]], 2).flatten(1, 2)
    if decay is not None:
        ones = decay.new_ones(*decay.shape[:2], n - 1, decay.shape[2])
        decay = torch.cat([decay[:, :, None], ones], 2).flatten(1, 2)
    o, state = delta_rule_chunk(
        queries, k.flatten(1, 2), v.flatten(1, 2), beta.flatten(1, 2), decay, state
    )
    return o[:, n - 1 :: n], state
