"""One token at a time: the delta rule's step with a state that is carried along."""

from __future__ import annotations

import torch

from benchmarks.ops.candidates import Call
from benchmarks.timing import Tensors
from statetrack.ops import delta_rule, delta_rule_step


def oracle(inputs: Tensors, chunk: int | None) -> Call:
    """The op itself, by definition."""
    tokens = {name: inputs[name] for name in ("q", "k", "v", "beta")}

    def call() -> Tensors:
        o, state = delta_rule(
            **tokens, initial_state=inputs["S"], output_final_state=True, backend="naive"
        )
        assert state is not None
        return {"o": o[:, -1], "S": state}

    return call


def ours(inputs: Tensors, chunk: int | None) -> Call:
    """The in-place step, one token after the other."""
    tokens = [[x.contiguous() for x in inputs[name].unbind(1)] for name in ("q", "k", "v", "beta")]
    state = inputs["S"].clone(memory_format=torch.contiguous_format)

    def call() -> Tensors:
        for q, k, v, beta in zip(*tokens, strict=True):
            o = delta_rule_step(state, q, k, v, beta)
        return {"o": o, "S": state}

    return call


def bmm(inputs: Tensors, chunk: int | None) -> Call:
    """The same in torch's batched products, the state updated in place."""
    batch, _, heads, size = inputs["q"].shape
    q, k, v = (
        [x.reshape(batch * heads, 1, -1) for x in inputs[name].unbind(1)]
        for name in ("q", "k", "v")
    )
    beta = [x.reshape(batch * heads, 1, 1) for x in inputs["beta"].unbind(1)]
    state = inputs["S"].flatten(0, 1).clone()
    scale = size**-0.5

    @torch.no_grad()
    def call() -> Tensors:
        o = state
        for q_t, k_t, v_t, beta_t in zip(q, k, v, beta, strict=True):
            error = torch.baddbmm(v_t, k_t, state, alpha=-1).mul_(beta_t)
            state.baddbmm_(k_t.transpose(1, 2), error)
            o = torch.bmm(q_t, state).mul_(scale)
        return {"o": o.view(batch, heads, -1), "S": state.view(batch, heads, size, -1)}

    return call
