"""Hardening of DeltaNet and its subclasses: weights that give inputs chosen keys, values, betas."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statetrack.layers.base import Mixer
from statetrack.layers.common import BetaGate
from statetrack.layers.inverse import (
    KEY_LENGTH,
    MIN_SILU,
    NO_NEGATIVE,
    REFIT_TOLERANCE,
    DependentError,
    HeadTargets,
    along_axes,
    before_normalisation,
    half_space,
    independent,
    into_quadrant,
    inverse_silu,
    inverse_stretched_sigmoid,
    pad_weights,
    refit,
)
from statetrack.layers.operations import TENSORS, TensorOps

if TYPE_CHECKING:
    from statetrack.layers.delta_net import (
        DeltaInputs,
        DeltaNetConfig,
        DeltaNetState,
        DeltaProjections,
    )

STRETCH = 0.1  # beta_stretch of a hardened layer that had none
MAX_OUTPUT = 0.999  # rms of a memoryless head's normalised output, which stays below 1


class DeltaHardening(Mixer):
    """The methods of `DeltaNet`, and of the layers that derive from it, for `harden`."""

    qk_silu: ClassVar[bool]
    config: DeltaNetConfig
    num_v_heads: int
    key_size: int
    sizes: Sequence[int]
    qkv_proj: nn.Linear
    o_proj: nn.Linear
    beta: BetaGate

    @abstractmethod
    def projections(self) -> DeltaProjections: ...

    @abstractmethod
    def op_inputs(
        self, x: Tensor, state: DeltaNetState | None = None, ops: TensorOps = TENSORS
    ) -> DeltaInputs: ...

    def hardening_obstacle(self) -> str | None:
        if self.num_v_heads != self.config.num_heads:
            return "its heads share keys"
        return None if self.config.allow_neg_eigval else NO_NEGATIVE

    @property
    def output_projection(self) -> nn.Linear:
        return self.o_proj

    @torch.no_grad()
    def without_conv(self, x: Tensor, conv_outputs: Sequence[Tensor], delay: int = 0) -> Self:
        q, k, v = conv_outputs
        units = (F.normalize(part.unflatten(-1, (-1, self.key_size)), dim=-1) for part in (q, k))
        wanted = [before_normalisation(unit, self.qk_silu)[0].flatten(1) for unit in units]
        wanted.append(inverse_silu(v))
        weight = refit(self.qkv_proj.weight, x, torch.cat(wanted, -1), exact=False)
        return self.with_config({"qkv_proj.weight": weight}, conv_size=0)

    @torch.no_grad()
    def memoryless(self, x: Tensor) -> Self:
        """Return a layer in which every input overwrites what the one before it wrote.

        With beta = 1 and one key for all that is written and read, a head's output is its value.
        SiLU removes negative entries of keys, so it takes one entry for the inputs on either side
        of a plane; with keys of one entry those on one side have the output 0.
        """
        made = copy.deepcopy(self)
        side = half_space(x)
        side *= KEY_LENGTH / (x @ side).abs().min().clamp(min=1e-6)
        weights = made.projections()
        for weight in (weights.q, weights.k):  # [..., K, D]
            weight.zero_()
            weight[..., 0, :] = side
            if self.qk_silu and self.key_size > 1:
                weight[..., 1, :] = -side
        weights.beta.zero_()  # 2 sigmoid(0) = 1
        made.open_gates(torch.ones(self.num_v_heads, dtype=torch.bool))
        return made

    def open_gates(self, heads: Tensor) -> None:
        """Make the gate of these heads [H] 1 for every input, in place, if the layer has one."""

    @torch.no_grad()
    def head_outputs(self, x: Tensor) -> Tensor:
        state = self.first_state(x)
        q, k, v, beta, gate, _ = self.op_inputs(x, state)
        o, _ = TENSORS.recurrence(q, k, v, beta, gate, state.S, factors=self.config.factors)
        return F.rms_norm(o, o.shape[-1:], eps=self.config.output_norm_eps)

    @torch.no_grad()
    def with_op_inputs(self, x: Tensor, wanted: HeadTargets, eps_factor: float = 1.0) -> Self:
        """See Mixer. Beta is stretched to reach 0 and 2.

        SiLU gives no value below -0.278: all values are scaled down until it does, and the epsilon
        of the norm, which undoes that, with them.
        """
        if self.qk_silu and not independent(x):  # `with_unit_keys` sets the queries of all inputs
            raise DependentError
        n, factors, eps = len(x), self.config.factors, eps_factor * self.config.output_norm_eps
        no_memory = ~wanted.outputs.isnan().any(-1).any(0)  # [H]
        size = wanted.outputs.square().mean(-1, keepdim=True).clamp(max=MAX_OUTPUT**2)
        constant = wanted.outputs * (self.key_size * eps / (1 - size)).sqrt()
        constant = constant.repeat_interleave(factors, 0)
        v = torch.where(no_memory[:, None], constant, wanted.v)  # [n f, H, V]
        rotate = into_quadrant if self.qk_silu else along_axes
        reflects = wanted.beta == 2
        roots = (k[own] for k, own in zip(wanted.k.unbind(1), reflects.unbind(1), strict=True))
        rotations = torch.stack([rotate(own) for own in roots])  # [H, K, K]
        keys = torch.einsum("nhk,hkl->nhl", wanted.k, rotations)
        keys[keys.abs() < 1e-12] = 0.0
        # k and -k reflect alike; the one with the smaller negative entries can be longer after SiLU
        flip = reflects & (keys.amin(-1) < -keys.amax(-1))
        sign = torch.where(flip, -1.0, 1.0)[..., None]
        v = sign * v
        scale = min(1.0, MIN_SILU / float(v.min())) if v.min() < 0 else 1.0
        stretch = self.config.beta_stretch or STRETCH
        made = self.with_config(beta_stretch=stretch, output_norm_eps=eps * scale**2)
        weights = made.projections()
        if not self.qk_silu:  # for any inputs
            weights.q.copy_(rotations.mT @ weights.q)
        elif not rotations.equal(torch.eye(self.key_size).expand_as(rotations)):
            made.set_queries(x, torch.einsum("nhk,hkl->nhl", self.queries(x), rotations))
        k, length = before_normalisation(sign * keys, self.qk_silu)
        beta = wanted.beta.view(n, -1)  # [n, f H]
        for by_head, outputs in ((weights.k, k), (weights.v, inverse_silu(scale * length * v))):
            targets = outputs.view(*beta.shape, -1).unbind(1)
            for i, weight in enumerate(by_head.flatten(0, 1)):
                written = beta[:, i] > 0
                target = targets[i][written]
                weight[~target.any(0)] = 0.0  # exactly
                weight.copy_(refit(weight, x[written], target))
        for i in torch.nonzero(no_memory).flatten().tolist():  # reads what was just written
            weights.q[i].copy_(refit(weights.q[i], x, k[::factors, i]))
        logits = inverse_stretched_sigmoid(beta / made.beta.top, stretch)
        weight = weights.beta.flatten(0, 1)
        weight.copy_(refit(weight, x, logits, exact=False))
        if (made.beta(x[None])[0] - beta).abs().max() > REFIT_TOLERANCE:
            raise DependentError
        made.open_gates(wanted.open_gates)
        return made

    @torch.no_grad()
    def queries(self, x: Tensor) -> Tensor:
        return self.op_inputs(x[None]).q[0]

    @torch.no_grad()
    def set_queries(self, x: Tensor, q: Tensor) -> None:
        targets, _ = before_normalisation(q, self.qk_silu)
        for weight, own in zip(self.projections().q, targets.unbind(1), strict=True):
            weight.copy_(refit(weight, x, own))

    def widened(self, hidden_size: int) -> Self:
        share, c = self.hidden_size / hidden_size, self.config
        config = replace(c, expand_k=c.expand_k * share, expand_v=c.expand_v * share)
        made = config.build(hidden_size)
        assert isinstance(made, type(self))
        pad_weights(made, self)
        return made

    @torch.no_grad()
    def with_unit_keys(self, x: Tensor) -> Self:
        """See Mixer. The layer has no SiLU on q and k."""
        if not self.qk_silu:
            return self
        made = copy.deepcopy(self)
        _, k, v, *_ = made.op_inputs(x[None])
        length, n = k[0].norm(dim=-1, keepdim=True), len(x)
        length = torch.where(length > 0.5, length, 1.0)  # the others, not written along, may be 0
        made.qk_silu = False  # type: ignore[misc]  # of this one alone
        q_rows, k_rows, v_rows = made.qkv_proj.weight.split(self.sizes)
        q_rows.copy_(refit(q_rows, x, F.silu(x @ q_rows.T)))
        k_rows.copy_(refit(k_rows, x, (KEY_LENGTH * k[0] / length).reshape(n, -1)))
        v_rows.copy_(refit(v_rows, x, inverse_silu(v[0] / length).reshape(n, -1)))
        return made
