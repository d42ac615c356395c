"""Hardening diagonal layers: gates that almost keep a channel keep it, and write nothing; gates
that almost flip it flip it. Others let it fade. They become 0 if that does no harm, so that states
come back; it is not needed for long sequences, since what fades does not add up.

The layers stay what they are, with other weights. Each has a gate that reaches its ends in float32
or comes within rounding of them, if its logits are large, and a token has the logits that it needs
if the rank of their projection is the number of tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from statetrack.hardening.candidate import NOT_NEEDED, Candidate, Part
from statetrack.hardening.outputs import say
from statetrack.hardening.roles import Roles, assign
from statetrack.hardening.tokens import (
    NO_STEP,
    DependentError,
    Seen,
    refit,
    window,
    with_mixer,
)
from statetrack.layers import (
    GLA,
    DiagonalRNN,
    DiagonalRNNConfig,
    GLAConfig,
    Mamba,
    MambaConfig,
    MixerConfig,
)
from statetrack.layers.diagonal_rnn import SHARPNESS
from statetrack.models import SequenceModel

FAR = 100.0  # exp(-FAR) is nothing beside 1, in float64 as well
FADES = "a gate fades more slowly than training shows"
DRIFTS = "two tokens flip it, and not about the same point"
NEVER = -1000.0  # softplus of it is 0 itself


def refusal(config: MambaConfig | GLAConfig | DiagonalRNNConfig) -> str | None:
    """Why such a layer cannot be hardened, if it cannot."""
    if not config.allow_neg_eigval:
        return "its eigenvalues lie in [0, 1], so that none flips"
    return None


def candidates(model: SequenceModel, seen: Seen, orders: Sequence[int]) -> Iterator[Candidate]:
    """Every way of rounding that is tried; `orders` are for reflections, and have no part here."""
    layer = seen.mixer(model)
    gates = read_gates(model, seen)
    for tau, zero, silence in product((0.005, 0.02, 0.1, 0.3), (1.0, 0.5, 0.0), (True, False)):
        roles = assign(gates, seen.recurring, tau, zero, alike=isinstance(layer, Mamba))
        silenced = roles.slow if silence else torch.zeros_like(roles.slow)
        if not roles.moved.any() or (silence and not roles.slow.any()):
            continue
        parts = tuple(
            Part(
                f"channel {c}",
                error=float(roles.error[c]) if roles.moved[c] and not roles.slow[c] else None,
                skipped=(DRIFTS if roles.drifts[c] else FADES) if roles.slow[c] else None,
                silenced=bool(silenced[c]),
            )
            for c in torch.nonzero(roles.moved | roles.slow).flatten().tolist()
        )
        try:
            made = write_gates(model, seen, roles, silenced)
        except DependentError:
            continue
        left = int((roles.slow & ~silenced).sum()), int(roles.fades[:, ~silenced].sum())
        yield Candidate(made, {"tau": tau, "zero": zero, "silence": silence}, parts, left)


@torch.no_grad()
def idle(model: SequenceModel, seen: Seen, out: Tensor) -> Candidate:
    """The model whose layer remembers nothing and says `out` [B, T, D], as nearly as it can.

    Its gates are 0, or no state is ever written.
    """
    made = copy.deepcopy(model)
    layer = seen.mixer(made)
    if isinstance(layer, Mamba):  # which says something of the input without a state, too
        layer.dt_proj.weight.zero_()
        layer.dt_proj.bias.fill_(NEVER)
    elif isinstance(layer, GLA):
        _, up = layer.decay_proj
        assert isinstance(up, nn.Linear)
        up.weight.zero_()
        up.bias.fill_(_zero_gate(layer))
    else:
        assert isinstance(layer, DiagonalRNN)
        for p in layer.W_A.parameters():
            p.zero_()
    if not isinstance(layer, DiagonalRNN):
        say(made, seen, out)
    parts = (Part("all channels", skipped=NOT_NEEDED, silenced=True),)
    return Candidate(made, {"memory": "none"}, parts, (0, 0), idle=True)


def ideal(model: SequenceModel, seen: Seen) -> SequenceModel:
    """The model that a float64 one stands for: itself."""
    return model


@torch.no_grad()
def read_gates(model: SequenceModel, seen: Seen) -> Tensor:
    """[n, C, N]: the diagonal of A by token, channel and, in Mamba, state of the channel."""
    layer = seen.mixer(model)
    assert isinstance(layer, Mamba | GLA | DiagonalRNN)
    windows = seen.x[:, None].expand(-1, window(layer), -1)  # a token, and none other before it
    values = layer.transitions(windows).values[:, -1]
    return values if isinstance(layer, Mamba) else values.flatten(1)[..., None]


@torch.no_grad()
def write_gates(model: SequenceModel, seen: Seen, roles: Roles, silenced: Tensor) -> SequenceModel:
    """The model in which every gate has its role; nothing is written to silenced channels [C]."""
    layer = seen.mixer(model)
    config: MixerConfig
    if isinstance(layer, Mamba):
        config, tensors = _mamba(layer, seen, roles, silenced)
    elif isinstance(layer, GLA):
        config, tensors = _gla(layer, seen, roles, silenced)
    else:
        assert isinstance(layer, DiagonalRNN)
        config, tensors = layer.config, _diagonal_rnn(layer, seen, roles, silenced)
    made = with_mixer(model, seen.layer, config)
    new = {f"blocks.{seen.layer}.mixer.{name}": t for name, t in tensors.items()}
    made.load_state_dict({**model.state_dict(), **new})
    return made


def _mamba(
    layer: Mamba, seen: Seen, roles: Roles, silenced: Tensor
) -> tuple[MambaConfig, dict[str, Tensor]]:
    """Step sizes of 0 keep; rates A so great that any other step size flips flip."""
    n = len(seen.ids)
    u = nn.functional.silu(seen.x @ layer.in_proj.weight[: layer.channels].T)
    low = layer.x_proj.weight[: layer.dt_rank] @ u.T  # [rank, n]
    logits = (layer.dt_proj.weight @ low).T + layer.dt_proj.bias  # [n, D]
    logits = torch.where(roles.keeps | silenced, NO_STEP, logits)
    step = nn.functional.softplus(logits)[:, :, None]
    flips = roles.flips.any(0) & ~silenced[:, None]  # [D, N]
    smallest = torch.where(roles.flips, step, torch.inf).amin(0)
    rate = torch.where(flips, FAR / smallest, layer.A_log.exp())
    only = torch.where(roles.forgets, step, torch.inf).amin(0)  # the one that forgets
    rate = torch.where(roles.forgets.any(0), math.log(2) / only, rate)  # 2 exp(-log 2) - 1 = 0
    # the step size's projection becomes: which token, then its logits
    rows = [refit(torch.zeros(n, u.shape[1]).double(), u, torch.eye(n).double())]
    rows.append(layer.x_proj.weight[layer.dt_rank :])
    tensors = {
        "x_proj.weight": torch.cat(rows),
        "dt_proj.weight": logits.T,
        "dt_proj.bias": torch.zeros_like(layer.dt_proj.bias),
        "A_log": rate.log(),
    }
    return replace(layer.config, dt_rank=n), tensors


def _gla(
    layer: GLA, seen: Seen, roles: Roles, silenced: Tensor
) -> tuple[GLAConfig, dict[str, Tensor]]:
    n = len(seen.ids)
    down, up = layer.decay_proj
    assert isinstance(down, nn.Linear)
    assert isinstance(up, nn.Linear)
    logits = seen.x @ down.weight.T @ up.weight.T + up.bias
    far = FAR * layer.config.gate_logit_normalizer
    logits = torch.where(roles.keeps, far, torch.where(roles.flips[..., 0], -far, logits))
    logits = torch.where(roles.forgets[..., 0], _zero_gate(layer), logits)
    keys = layer.sizes[0]
    weight = layer.qkv_proj.weight.clone()
    k = seen.x @ weight[keys : 2 * keys].T
    weight[keys : 2 * keys] = refit(
        weight[keys : 2 * keys], seen.x, k.masked_fill(roles.keeps | silenced, 0.0)
    )
    tensors = {
        "qkv_proj.weight": weight,
        "decay_proj.0.weight": refit(torch.zeros_like(seen.x), seen.x, torch.eye(n).double()),
        "decay_proj.1.weight": logits.T,
        "decay_proj.1.bias": torch.zeros_like(up.bias),
    }
    return replace(layer.config, gate_low_rank_dim=n), tensors


def _zero_gate(layer: GLA) -> float:
    """The logit of a gate of 0."""
    half = -math.log(2) * layer.config.gate_logit_normalizer  # of whose exp the root is 1/2
    return half - math.log(-math.expm1(half))


def _diagonal_rnn(
    layer: DiagonalRNN, seen: Seen, roles: Roles, silenced: Tensor
) -> dict[str, Tensor]:
    gate, write = (seen.x @ p.weight.T + p.bias for p in (layer.W_A, layer.W_B))
    end = FAR / SHARPNESS
    gate = torch.where(roles.keeps, end, torch.where(roles.flips[..., 0], -end, gate))
    gate = gate.masked_fill(roles.forgets[..., 0], 0.0)
    write = write.masked_fill(roles.keeps | silenced, 0.0)
    return {
        "W_A.weight": refit(layer.W_A.weight, seen.x, gate - layer.W_A.bias),
        "W_B.weight": refit(layer.W_B.weight, seen.x, write - layer.W_B.bias),
    }
