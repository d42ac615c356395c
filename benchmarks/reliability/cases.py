"""Random inputs for every op with native kernels, most of them at the end of some range.

A case holds float64 inputs whose values float32 can represent, so every number type starts from the
same numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from statetrack.ops import (
    cross_entropy,
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
    gated_linear_attention,
    gated_linear_attention_step,
    rms_norm,
    selective_scan,
    selective_scan_step,
    short_conv,
    slstm,
    swiglu,
)
from statetrack.testing.inputs import Tensors, draw, spread, unit

SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 70, 100, 130)
GATES = (0.0, 1.0, -1.0, 0.5, -0.5, 1e-2, 1e-3, -1e-4, 1e-6, 1e-8)
BUDGET = 300_000  # numbers in all states of a case, all tokens counted


@dataclass
class Case:
    """One call: `op(**inputs, backend=...)` gives a tensor or nested tuples of tensors."""

    name: str  # of the op, as the table lists it
    op: Callable[..., Any]
    inputs: Tensors
    # the dimensions of a tensor that number its rows; by input, "output 0" and so on
    rows: dict[str, tuple[int, ...]]
    bounds: list[int] | None = None  # of packed sequences, along dimension 1
    differentiable: bool = True
    settings: list[str] = field(default_factory=list)  # what was drawn, for the report

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in self.inputs.items())
        return f"{self.name}: {shapes}; {', '.join(self.settings)}"


class Draw:
    """Draws everything of one case from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.normal = draw(seed)
        self.settings: list[str] = []

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one(self, what: str, choices: Sequence[Any]) -> Any:
        """Choose one, and remember it for the report."""
        choice = self.random.choice(choices)
        self.settings.append(f"{what} {choice}")
        return choice

    def length(self, per_token: int) -> int:
        """Tokens: mostly few, sometimes several hundred, as far as the budget goes."""
        most = self.random.choice((1, 2, 3, 9, 40, 70, 300, 700))
        return self.random.randint(1, max(1, min(most, BUDGET // per_token)))

    def scaled(self, what: str, *shape: int) -> Tensor:
        """Normal numbers of any magnitude; sometimes another one for each token."""
        kind = self.one(what, ("1", "1", "1", "1e-6", "1e-3", "1e3", "zero", "by token"))
        x = self.normal(*shape)
        if kind == "zero":
            return 0 * x
        if kind == "by token" and len(shape) > 2:
            scale = spread(self.normal(shape[0], shape[1], *[1] * (len(shape) - 2)), -5, 2)
            return (x * 10**scale).float().double()
        return (x * (1.0 if kind == "by token" else float(kind))).float().double()

    def state(self, *shape: int) -> Tensor | None:
        """A state to start from: none, zeros, tiny or of any other magnitude."""
        return None if self.chance(0.3) else self.scaled("initial state", *shape)

    def gates(self, log: bool, *shape: int) -> Tensor:
        """Gates in [-1, 1], or logarithms of gates in [0, 1]."""
        kind = self.one("gates", ("near 1", "any", "tiny", "one value", "mixed"))
        x = self.normal(*shape)
        if kind == "near 1":
            gates = spread(x, 0.9, 1.0)
        elif kind == "any":
            gates = spread(x, -1.0, 1.0)
        elif kind == "tiny":
            gates = 10 ** spread(x, -12.0, -1.0)
        else:
            values = [self.random.choice(GATES)] if kind == "one value" else list(GATES)
            if kind == "one value":
                self.settings.append(f"gate {values[0]}")
            picks = torch.special.ndtr(x).mul(len(values)).long().clamp(0, len(values) - 1)
            gates = torch.tensor(values, dtype=torch.float64)[picks]
        gates = gates.abs().log() if log else gates
        return gates.float().double()

    def betas(self, *shape: int) -> Tensor:
        kind = self.one("beta", ("any", "any", "any", "0", "1", "2", "ends"))
        x = self.normal(*shape)
        if kind == "any":
            return spread(x, 0.0, 2.0)
        if kind == "ends":
            return 2.0 * (x > 0).double()
        return torch.full(shape, float(kind), dtype=torch.float64)

    def keys(self, *shape: int) -> Tensor:
        """Unit keys, sometimes all alike or along one axis."""
        kind = self.one("keys", ("any", "any", "any", "alike", "one-hot"))
        x = unit(self.normal(*shape))
        if kind == "alike":
            return x[:, :1].expand(shape).clone()
        if kind == "one-hot":
            return torch.nn.functional.one_hot(x.argmax(-1), shape[-1]).double()
        return x

    def packed(self, tokens: int) -> list[int]:
        """Boundaries of one to five sequences that have `tokens` tokens in all."""
        cuts = self.random.sample(range(1, tokens), min(tokens - 1, self.random.randint(0, 4)))
        return [0, *sorted(cuts), tokens]


def _recurrence(d: Draw, name: str) -> Case:
    """delta_rule, delta_product and gated_linear_attention; row: one sequence of one head."""
    K, V, H = d.random.choice(SIZES), d.random.choice(SIZES), d.random.randint(1, 3)
    n = d.random.randint(1, 4) if name == "delta_product" else 1
    B = d.random.randint(1, 3)
    T = d.length(B * H * K * V * n)
    channel = name == "gated_linear_attention" and d.chance(0.5)
    gate = d.one("gate through", ("g", "g", "decay", "decay", None))
    pack = d.chance(0.25)
    if pack:
        B, T = 1, B * T
    bounds = d.packed(T) if pack else None
    inputs = {"q": d.scaled("q", B, T, H, K), "k": d.keys(B, T * n, H, K)}
    inputs["v"] = d.scaled("v", B, T * n, H, V)
    if name != "gated_linear_attention":
        inputs["beta"] = d.betas(B, T * n, H)
    elif d.chance(0.5):
        inputs["k"] = d.scaled("k", B, T, H, K)
    rows = dict.fromkeys(("q", "k", "v", "beta", "output 0"), (0, 2))
    rows |= {"initial_state": (0, 1), "output 1": (0, 1)}
    if gate:
        inputs[gate] = d.gates(gate == "g", B, T, H, *[K] * channel)
        rows[gate] = (0, 2, 3) if channel else (0, 2)
    state = d.state(len(bounds) - 1 if bounds else B, H, K, V)
    if state is not None:
        inputs["initial_state"] = state
    options: dict[str, Any] = {"output_final_state": True}
    if n > 1 or name == "delta_product":
        options["num_householder"] = n
    if bounds:
        options["cu_seqlens"] = torch.tensor(bounds)
    op = {
        "delta_rule": delta_rule,
        "delta_product": delta_product,
        "gated_linear_attention": gated_linear_attention,
    }[name]
    label = name + (", channel gates" if channel and gate else "") + (f", {gate}" if gate else "")
    return Case(label, partial(op, **options), inputs, rows, bounds, settings=d.settings)


def _recurrence_step(d: Draw, name: str) -> Case:
    """One token of those, the state changed in place."""
    K, V, H, B = (d.random.choice(SIZES) for _ in range(4))
    B, H = min(B, 7), min(H, 5)
    n = d.random.randint(1, 4) if name == "delta_product" else 1
    channel = name == "gated_linear_attention" and d.chance(0.5)
    gate = d.one("gate through", ("g", "decay", None))
    inputs = {"state": d.scaled("state", B, H, K, V), "q": d.scaled("q", B, H, K)}
    inputs |= {"k": d.keys(B, n, H, K), "v": d.scaled("v", B, n, H, V)}
    if name != "gated_linear_attention":
        inputs["beta"] = d.betas(B, n, H)
    if gate:
        inputs[gate] = d.gates(gate == "g", B, H, *[K] * channel)
    many = {"k", "v", "beta"} if name == "delta_product" else set()
    step = {
        "delta_rule": delta_rule_step,
        "delta_product": delta_product_step,
        "gated_linear_attention": gated_linear_attention_step,
    }[name]
    op = {
        "delta_rule": delta_rule,
        "delta_product": partial(delta_product, num_householder=n),
        "gated_linear_attention": gated_linear_attention,
    }[name]

    def run(backend: str, state: Tensor, **x: Tensor) -> tuple[Tensor, Tensor]:
        if backend == "native":
            after = state.clone(memory_format=torch.contiguous_format)
            x = {key: t if key in many or key not in ("k", "v", "beta") else t[:, 0]
                 for key, t in x.items()}  # fmt: skip
            return step(after, **x), after
        x = {key: t if key in ("k", "v", "beta") else t[:, None] for key, t in x.items()}
        o, after = op(**x, initial_state=state, output_final_state=True, backend=backend)
        return o[:, 0], after

    rows = {"output 0": (0, 1), "output 1": (0, 1)}
    return Case(f"{name}_step", run, inputs, rows, differentiable=False, settings=d.settings)


def _scan_inputs(d: Draw, B: int, T: int, D: int, N: int) -> Tensors:
    kind = d.one("delta", ("usual", "any", "ends", "tiny"))
    x = d.normal(B, T, D)
    if kind == "ends":
        values = torch.tensor([0.0, 1e-8, 1e-3, 1.0, 30.0], dtype=torch.float64)
        delta = values[torch.special.ndtr(x).mul(5).long().clamp(0, 4)]
    else:
        low, high = {"usual": (1e-3, 0.1), "any": (0.0, 4.0), "tiny": (0.0, 1e-7)}[kind]
        delta = spread(x, low, high)
    rate = d.one("A", (1e-4, 1.0, 16.0))
    inputs = {
        "u": d.scaled("u", B, T, D),
        "delta": delta.float().double(),
        "A": -spread(d.normal(D, N), 0.1 * rate, rate),
        "B": d.scaled("B", B, T, N),
        "C": d.scaled("C", B, T, N),
    }
    if d.chance(0.5):
        inputs["D"] = d.normal(D)
    if d.chance(0.5):
        inputs["z"] = d.scaled("z", B, T, D)
    return inputs


def _selective_scan(d: Draw, step: bool) -> Case:
    """Row: one channel of one sequence (of A one channel, of B and C one state)."""
    B, D, N = d.random.randint(1, 3), d.random.choice(SIZES), d.random.choice(SIZES[:12])
    T = 1 if step else d.length(B * D * N)
    negative = d.one("allow_neg_eigval", (False, True))
    pack = not step and d.chance(0.25)
    if pack:
        B, T = 1, B * T
    inputs = _scan_inputs(d, B, T, D, N)
    name = f"selective_scan{'_step' if step else ''} {'[-1, 1]' if negative else '[0, 1]'}"
    by_token = dict.fromkeys(("u", "delta", "B", "C", "z", "output 0"), (0, 2))
    rows = {**by_token, "A": (0,), "D": (), "initial_state": (0, 1), "output 1": (0, 1)}
    if step:
        inputs["state"] = d.scaled("state", B, D, N)

        def run(backend: str, state: Tensor, **x: Tensor) -> tuple[Tensor, Tensor]:
            options = {"allow_neg_eigval": negative, "backend": backend}
            if backend == "native":
                after = state.clone(memory_format=torch.contiguous_format)
                x = {key: t[:, 0] if t.dim() == 3 else t for key, t in x.items()}
                return selective_scan_step(after, **x, **options), after
            y, after = selective_scan(**x, initial_state=state, output_final_state=True, **options)
            return y[:, 0], after

        rows |= {"output 0": (0,)}
        return Case(name, run, inputs, rows, differentiable=False, settings=d.settings)
    bounds = d.packed(T) if pack else None
    state = d.state(len(bounds) - 1 if bounds else B, D, N)
    if state is not None:
        inputs["initial_state"] = state
    options: dict[str, Any] = {"allow_neg_eigval": negative, "output_final_state": True}
    if bounds:
        options["cu_seqlens"] = torch.tensor(bounds)
    op = partial(selective_scan, **options)
    return Case(name, op, inputs, rows, bounds, settings=d.settings)


def _mask(d: Draw, B: int, T: int) -> Tensor:
    """A mask [B, T] that is False for padding, at the right end of each row."""
    return torch.arange(T) < torch.tensor([d.random.randint(0, T) for _ in range(B)])[:, None]


def _short_conv(d: Draw) -> Case:
    """Row: one channel of one sequence."""
    B, W = d.random.randint(1, 3), d.random.randint(1, 8)
    parts = [(d.random.choice(SIZES[:9]), d.random.choice((0, 0, 1, 3, 8, 33)))]
    parts += [(d.random.randint(1, 4), d.random.choice((0, 2, 16)))] * d.random.randint(0, 2)
    sizes = [count * (head or 1) for count, head in parts]
    D, T = sum(sizes), d.length(100 * sum(sizes))
    inputs = {"x": d.scaled("x", B, T, D), "weight": d.scaled("weight", D, W)}
    if d.chance(0.5):
        inputs["bias"] = d.scaled("bias", D)
    if d.chance(0.5):
        inputs["window"] = d.scaled("window", B, W - 1, D)
    options: dict[str, Any] = {"silu": d.one("silu", (False, True)), "sizes": sizes}
    options["head_sizes"] = [head for _, head in parts]
    if d.chance(0.4):
        options["mask"] = _mask(d, B, T)
    rows: dict[str, tuple[int, ...]] = {"x": (0, 2), "window": (0, 2), "weight": (0,), "bias": ()}
    rows |= {f"output {i}": (0, 2) for i in range(len(parts) + 1)}
    return Case("short_conv", partial(short_conv, **options), inputs, rows, settings=d.settings)


def _rms_norm(d: Draw) -> Case:
    R, D = d.random.randint(1, 40), d.random.choice((*SIZES, 300, 1025))
    inputs = {"x": d.scaled("x", R, 1, D)[:, 0], "weight": d.scaled("weight", D)}
    op = partial(rms_norm, eps=d.one("eps", (1e-6, 1e-5, 1e-12)))
    rows: dict[str, tuple[int, ...]] = {"x": (0,), "weight": (), "output 0": (0,)}
    return Case("rms_norm", op, inputs, rows, settings=d.settings)


def _swiglu(d: Draw) -> Case:
    R, D = d.random.randint(1, 40), d.random.choice((*SIZES, 300, 1025))
    inputs = {"x": d.scaled("x", R, 1, 2 * D)[:, 0]}
    return Case("swiglu", swiglu, inputs, {"x": (0,), "output 0": (0,)}, settings=d.settings)


def _cross_entropy(d: Draw) -> Case:
    R, classes = d.random.randint(1, 60), d.random.choice((*SIZES, 300, 1025))
    scale = d.one("logits", (1e-6, 1.0, 10.0, 1e4))
    targets = torch.tensor([d.random.randrange(classes) for _ in range(R)])
    for row in range(1, R):
        if d.chance(0.3):
            targets[row] = -100
    inputs = {"logits": (scale * d.normal(R, classes)).float().double()}
    rows: dict[str, tuple[int, ...]] = {"logits": (0,), "output 0": ()}
    op = partial(cross_entropy, targets=targets)
    return Case("cross_entropy", op, inputs, rows, settings=d.settings)


def _slstm(d: Draw) -> Case:
    """Row: one gate of one head of one sequence."""
    B, H, D = d.random.randint(1, 4), d.random.randint(1, 3), d.random.choice(SIZES[:14])
    T = min(d.length(4 * B * H * D * D), 100)
    width = d.one("gates", (0.1, 1.0, 5.0, 30.0))
    inputs = {
        "x": (width * d.normal(B, T, H, 4, D)).float().double(),
        "R": (d.one("R", (0.0, 0.1, 1.0)) / math.sqrt(D) * d.normal(H, 4, D, D)).float().double(),
    }
    started = d.chance(0.6)
    if started:
        inputs |= {part: d.normal(B, H, D) for part in "hcnm"}
        inputs["n"] = 0.5 + inputs["n"].abs()
    options: dict[str, Any] = {"output_final_state": True}
    if d.chance(0.4):
        options["mask"] = _mask(d, B, T)

    def op(x: Tensor, R: Tensor, backend: str, **state: Tensor) -> Any:
        initial = tuple(state.values()) if started else None
        return slstm(x, R, initial_state=initial, backend=backend, **options)

    rows: dict[str, tuple[int, ...]] = {"x": (0, 2, 3), "R": (0, 1), "output 0": (0, 2)}
    rows |= dict.fromkeys("hcnm", (0, 1)) | {f"output {i}": (0, 1) for i in range(1, 5)}
    return Case("slstm", op, inputs, rows, settings=d.settings)


# how often each is drawn: the recurrences with gates have the most ways to go wrong
OPS: dict[Callable[[Draw], Case], int] = {
    partial(_recurrence, name="delta_rule"): 6,
    partial(_recurrence, name="delta_product"): 5,
    partial(_recurrence, name="gated_linear_attention"): 8,
    partial(_selective_scan, step=False): 5,
    _short_conv: 3,
    _slstm: 3,
    _rms_norm: 1,
    _swiglu: 1,
    _cross_entropy: 1,
    partial(_selective_scan, step=True): 1,
    partial(_recurrence_step, name="delta_rule"): 1,
    partial(_recurrence_step, name="delta_product"): 1,
    partial(_recurrence_step, name="gated_linear_attention"): 1,
}
_ENDS = list(accumulate(OPS.values()))


def draw_case(seed: int) -> Case:
    """Draw the case of a seed; consecutive seeds go through all ops."""
    place = seed % _ENDS[-1]
    make = next(op for op, end in zip(OPS, _ENDS, strict=True) if place < end)
    return make(Draw(seed))
