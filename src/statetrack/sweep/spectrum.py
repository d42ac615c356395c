"""A sample of the eigenvalues of a run's model, in the format of a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from statetrack.devices import device_of
from statetrack.models import SequenceModel
from statetrack.tasks import Stream
from statetrack.training import RunConfig

EIGENVALUES = 512  # of a layer
SEQUENCES, TOKENS = 16, 64  # of which the eigenvalues are sampled


@torch.no_grad()
def sampled_spectrum(config: RunConfig, model: SequenceModel) -> dict[str, Any]:
    """Sample the eigenvalues of each layer at tokens of a test batch.

    Args:
        config: of the run.
        model: its model.

    Returns:
        "layers": for each layer the real and imaginary parts; None if the layer has no A(x).
    """
    task, t = config.task, config.training
    lengths = (t.min_length, t.max_length)
    batch = Stream(task, "test", t.data_seed, SEQUENCES, *lengths).batch(0)
    tokens = torch.from_numpy(batch.tokens).to(device_of(model))
    rng = np.random.default_rng(0)
    at = np.argwhere(batch.tokens != task.pad)
    at = at[np.sort(rng.permutation(len(at))[:TOKENS])]
    index = tuple(torch.from_numpy(at.T.copy()).to(tokens.device))
    layers: list[dict[str, list[float]] | None] = []
    for transition in model.transitions(tokens):
        if transition is None:
            layers.append(None)
            continue
        values = transition[index].eigvals().flatten().cpu().numpy()
        values = values[np.sort(rng.permutation(len(values))[:EIGENVALUES])]
        parts = (np.round(part.astype(float), 6).tolist() for part in (values.real, values.imag))
        layers.append(dict(zip(("real", "imag"), parts, strict=True)))
    return {"layers": layers}
