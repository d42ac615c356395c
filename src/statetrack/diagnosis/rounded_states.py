"""A model's states in the theorems' model of finite precision, on a word that is repeated.

The state of a layer after token t is cast(Σ_s cast(A(x_t) ... A(x_{s+1}) B(x_s))), where the first
state is one more B; what the layer reads is a function of that state. Products and sums are
computed in float64: they are exact up to 53 bits, of which a cast keeps 24 at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statetrack.compiler.network import CompiledRNN, next_rules
from statetrack.compiler.stages_to_network import rows
from statetrack.diagnosis.finite_precision import Datatype, Floats
from statetrack.layers.operations import Gate, TensorOps
from statetrack.models import SequenceModel

TOKENS = 1024  # that are read
EQUAL = 1e-12  # inputs of a layer that differ by less are taken for the same

Step = Callable[[int, Tensor], Tensor]  # a token's number t and states [N, ...] -> A(x_t) states


@dataclass(frozen=True)
class RoundedLayer:
    """States of one layer: from token `start` on they repeat after `period` tokens.

    Both are None if they do not within the second half of the tokens that were read.
    """

    period: int | None
    start: int | None

    def __str__(self) -> str:
        if self.period is None:
            return "still changes"
        kind = "constant" if self.period == 1 else f"period {self.period}"
        return f"{kind} from token {self.start:,}"


@dataclass(frozen=True)
class RoundedStates:
    """All layers in one datatype; those after a layer whose states are not covered are absent."""

    precision: str
    tokens: int
    layers: tuple[RoundedLayer, ...]


@torch.no_grad()
def find_rounded_states(
    model: SequenceModel | CompiledRNN,
    word: Sequence[int],
    datatype: Datatype,
    tokens: int = TOKENS,
) -> RoundedStates:
    """Read a word again and again, and find from which token on each layer's states repeat.

    Args:
        model: in float64.
        word: the ids of its tokens.
        datatype: to which products and sums are cast.
        tokens: how many are read.
    """
    repeated = torch.tensor(list(word)).repeat(-(-tokens // len(word)))[None, :tokens]
    states = (
        _compiled_states(model, repeated, datatype, len(word))
        if isinstance(model, CompiledRNN)
        else _model_states(model, repeated, datatype, len(word))
    )
    return RoundedStates(datatype.name, tokens, tuple(map(find_period, states)))


def find_period(states: Floats) -> RoundedLayer:
    """Return the least period of the rows [T, ...] that holds for at least half of them."""
    length = len(states)
    numbers: dict[bytes, int] = {}
    flat = states.reshape(length, -1) + 0.0  # no -0
    ids = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in flat])
    for period in range(1, length // 4 + 1):
        changes = np.flatnonzero(ids[period:] != ids[:-period])
        start = int(changes[-1]) + 2 if len(changes) else 1
        if start <= length // 2:
            return RoundedLayer(period, start)
    return RoundedLayer(None, None)


def rounded_states(
    apply: Step, writes: Tensor, state: Tensor, inputs: Tensor, period: int, datatype: Datatype
) -> Floats:
    """[T, ...]: the states by the definition above.

    Once the inputs are periodic, the products for token s + P at t + P are those for s at t, so
    only those of one period are followed.

    Args:
        apply: multiplies states by A(x_t).
        writes: [T, ...]: B(x_t).
        state: [1, ...]: the first state.
        inputs: [T, ...]: what A(x_t) and B(x_t) are functions of.
        period: of the tokens, P a multiple of which the inputs may have.
        datatype: to which products and sums are cast.
    """
    length = len(writes)
    begin, period = _periodic_from(inputs.reshape(length, -1), period)
    terms = state.double()
    sums: list[Floats] = []  # of the products for tokens from `begin` on
    states = []
    for t in range(length):
        terms = apply(t, terms)
        if t < begin + period:
            terms = torch.cat([terms, writes[t : t + 1].double()])
        cast = datatype.cast_array(terms.numpy())
        later = cast[1 + begin :].sum(0)
        sums.append(later + sums[t - period] if t >= begin + period else later)
        states.append(datatype.cast_array(cast[: 1 + begin].sum(0) + sums[t]))
    return np.stack(states)


def _periodic_from(inputs: Tensor, least: int) -> tuple[int, int]:
    """The token from which on inputs [T, D] repeat, and their period; the end if they do not."""
    length = len(inputs)
    for period in range(least, length // 4 + 1, least):
        differ = (inputs[period:] - inputs[:-period]).abs().amax(1) > EQUAL
        begin = int(differ.nonzero().max()) + 1 if differ.any() else 0
        if begin <= length // 2:
            return begin, period
    return length, length


class RoundedOps(TensorOps):
    """Operations whose recurrences round as in the theorems; for one sequence.

    `states` is what the last recurrence went through, [T, ...], None without one.
    """

    def __init__(self, datatype: Datatype, period: int) -> None:
        super().__init__(backend="naive")
        self.datatype = datatype
        self.period = period
        self.states: Floats | None = None

    def recurrence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None,
        gate: Gate | None,
        state: Tensor,
        *,
        factors: int = 1,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = _tokens(q, 1), _tokens(k, factors), _tokens(v, factors)  # [T, ...]
        beta = None if beta is None else _tokens(beta, factors)
        decay = None if gate is None else _tokens(gate.values(), 1)

        def run(
            rows: slice, states: Tensor, *, write: bool = True, keep: bool = False
        ) -> tuple[Tensor, Tensor]:
            """Let each of some states read a token; with `keep` it is read but not changed."""
            batch = len(states)
            gates = None if decay is None or keep else Gate(decay=_expand(decay[rows], batch))
            return super(RoundedOps, self).recurrence(
                _expand(q[rows], batch),
                _expand(k[rows], batch) * (not keep),
                _expand(v[rows], batch) * write,
                None if beta is None else _expand(beta[rows], batch),
                gates,
                states,
                factors=factors,
                scale=scale,
            )

        _, writes = run(slice(None), _expand(torch.zeros_like(state), len(q)))
        inputs = [x for x in (k, v, beta, decay) if x is not None]
        rounded = self._round(
            lambda t, terms: run(slice(t, t + 1), terms, write=False)[1], writes, state, inputs
        )
        o, _ = run(slice(None), rounded, keep=True)
        return o.transpose(0, 1), rounded[-1:]

    def selective_scan(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        z: Tensor,
        state: Tensor,
        *,
        signed: bool,
    ) -> tuple[Tensor, Tensor]:
        u, delta, B, C, z = (_tokens(x, 1) for x in (u, delta, B, C, z))
        A, D = A.double(), D.double()

        def run(
            rows: slice, states: Tensor, *, write: bool = True, keep: bool = False
        ) -> tuple[Tensor, Tensor]:
            batch = len(states)
            return super(RoundedOps, self).selective_scan(
                _expand(u[rows], batch),
                _expand(delta[rows], batch) * (not keep),  # a step of size 0 changes nothing
                A,
                _expand(B[rows], batch) * write,
                _expand(C[rows], batch),
                D,
                _expand(z[rows], batch),
                states,
                signed=signed,
            )

        _, writes = run(slice(None), _expand(torch.zeros_like(state), len(u)))
        rounded = self._round(
            lambda t, terms: run(slice(t, t + 1), terms, write=False)[1],
            writes,
            state,
            [u, delta, B],
        )
        y, _ = run(slice(None), rounded, keep=True)
        return y.transpose(0, 1), rounded[-1:]

    def linear_scan(self, a: Tensor, b: Tensor, state: Tensor) -> Tensor:
        a, b = a.double()[0], b.double()[0]
        return self._round(lambda t, terms: a[t] * terms, b, state, [a, b])[None]

    def _round(self, apply: Step, writes: Tensor, state: Tensor, inputs: list[Tensor]) -> Tensor:
        flat = torch.cat([x.reshape(len(writes), -1) for x in inputs], 1)
        self.states = rounded_states(apply, writes, state, flat, self.period, self.datatype)
        return torch.from_numpy(self.states)


def _tokens(x: Tensor, factors: int) -> Tensor:
    """[1, T factors, ...] -> [T, factors, ...], in float64."""
    return x.double().reshape(-1, factors, *x.shape[2:])


def _expand(x: Tensor, batch: int) -> Tensor:
    """[1 or batch, ...] -> [batch, ...], in float64."""
    return x.double().expand(batch, *x.shape[1:])


def _model_states(
    model: SequenceModel, tokens: Tensor, datatype: Datatype, period: int
) -> Iterator[Floats]:
    """Yield the states [T, ...] of every layer, up to the first that has none of this kind."""
    x = model.embed(tokens)
    for block in model.stack():
        ops = RoundedOps(datatype, period)
        x, _ = block.mix(x, block.init_state(1), ops)
        if ops.states is None or not block.mixer.affine_state:
            return
        yield ops.states


def _compiled_states(
    net: CompiledRNN, tokens: Tensor, datatype: Datatype, period: int
) -> Iterator[Floats]:
    """Yield the states of every layer [T, ...]."""
    rules = rows(net.first, tokens)
    for layer in net.stack:
        A, B = (x.double() for x in layer.matrices())
        each = rules[0].tolist()
        states = rounded_states(
            lambda t, terms, A=A, each=each: A[each[t]] @ terms,  # type: ignore[misc]
            B[rules[0]], layer.H0[None], rules[0, :, None].double(), period, datatype,
        )  # fmt: skip
        yield states
        readings = layer.read(rules, torch.from_numpy(states)[None].to(layer.H0.dtype))
        start = layer.moves.new_full((1,), layer.start)
        rules = next_rules(layer, rules, layer.identify(readings), start, layer is net.stack[-1])
