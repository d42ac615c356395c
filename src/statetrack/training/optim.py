"""Optimiser, learning rate and the saturation penalty."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from statetrack.devices import device_of
from statetrack.models import SequenceModel
from statetrack.training.config import TrainingConfig

FUSED = ("cpu", "cuda", "mps")  # devices on which AdamW has one kernel for all parameters


def make_optimizer(model: SequenceModel, config: TrainingConfig) -> torch.optim.AdamW:
    """Make AdamW with its weight-decay groups; see `TrainingConfig.decay_groups`."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    mixers = [block.mixer for block in model.stack()]
    exempt = {id(getattr(mixer, name)) for mixer in mixers for name in mixer.no_weight_decay}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        spared = id(parameter) in exempt
        if config.decay_groups == "standard":
            spared = spared or parameter.dim() < 2 or id(parameter) in embeddings
        (free if spared else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=device_of(model).type in FUSED,
    )


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate: linear warm-up from 0, then cosine to min_lr or constant."""
    warmup = round(config.warmup * config.steps)
    if step < warmup:
        return config.lr * step / warmup
    if config.schedule == "constant":
        return config.lr
    progress = (step - warmup) / max(1, config.steps - warmup)
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2


def saturation_weight(config: TrainingConfig, step: int) -> float:
    """Return the penalty's weight: 0 to saturation_start, linear to saturation_full, constant."""
    start, full = config.saturation_start * config.steps, config.saturation_full * config.steps
    if step >= full:
        return config.saturation
    if step <= start:
        return 0.0
    return config.saturation * (step - start) / (full - start)


@contextmanager
def recorded_betas(
    model: SequenceModel, *, enabled: bool = True
) -> Iterator[list[tuple[Tensor, float]]]:
    """Collect (beta [B, T, H], its greatest possible value) of every gate that runs inside."""
    found: list[tuple[Tensor, float]] = []
    if not enabled:
        yield found
        return
    tops = {gate: top for block in model.stack() for gate, top in block.mixer.beta_gates().items()}

    def record(gate: nn.Module, _: Any, beta: Tensor) -> None:
        found.append((beta, tops[gate]))

    hooks = [gate.register_forward_hook(record) for gate in tops]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def saturation_penalty(
    betas: list[tuple[Tensor, float]], real: Tensor | tuple[Tensor, ...]
) -> Tensor:
    """Compute the mean of beta (top - beta) (2 / top)^2 over the real tokens.

    `real` is a mask [B, T], or the rows and columns of these tokens: a mask as an index waits for
    the GPU.

    It is 0 for beta = 0 and beta = top. A beta between these ends forgets a little at every token,
    which limits the length over which a state is kept.
    """
    terms = [(b * (top - b))[real].mean() * (2 / top) ** 2 for b, top in betas]
    return torch.stack(terms).mean()
