"""Regular languages and groups, compiled into linear RNNs whose every number is known."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import numpy as np
import torch

from statetrack.automata import DFA, Group
from statetrack.compiler.cascade import Cascade
from statetrack.compiler.counting import find_counters
from statetrack.compiler.decomposition import METHODS, decompose
from statetrack.compiler.induction import Ints
from statetrack.compiler.languages import find_language
from statetrack.compiler.layers import Layer
from statetrack.compiler.model import CompiledModel, build_model
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.stages import Stage, group_stage, one_hot, one_stage, remembering
from statetrack.compiler.targets import LAYERS
from statetrack.compiler.wording import counted
from statetrack.config import one_of
from statetrack.errors import UserError, check_type

MODEL = "gated_deltaproduct"
TARGETS = ("auto", *LAYERS, MODEL)
DELAYS = ("shift", "state")


@overload
def compile(
    language: str | DFA | Group | Cascade,
    target: Literal["auto", "householder", "dense", "diagonal"] = "auto",
    method: str = "auto",
    delay: str = "shift",
    dtype: torch.dtype = torch.float32,
) -> CompiledRNN: ...


@overload
def compile(
    language: str | DFA | Group | Cascade,
    target: Literal["gated_deltaproduct"],
    method: str = "auto",
    delay: str = "shift",
    dtype: torch.dtype = torch.float32,
) -> CompiledModel: ...


@overload
def compile(
    language: str | DFA | Group | Cascade,
    target: str,
    method: str = "auto",
    delay: str = "shift",
    dtype: torch.dtype = torch.float32,
) -> CompiledRNN | CompiledModel: ...


def compile(
    language: str | DFA | Group | Cascade,
    target: str = "auto",
    method: str = "auto",
    delay: str = "shift",
    dtype: torch.dtype = torch.float32,
) -> CompiledRNN | CompiledModel:
    """A linear RNN that computes, exactly and at any length, the state of a DFA after each symbol.

    Args:
        language: as in `statetrack explain`: a regular expression; the name of a task, such as
            "tomita3", with an automaton; a DFA or its file, of which the minimal one is taken; a
            group or its name, such as "S5", for its word problem with all elements as symbols. Or
            a cascade.
        target: "householder" runs on `delta_product`, "dense" on a blocked scan, "diagonal" on
            `gated_linear_attention` with gates of 0 and 1, which star-free languages can do with;
            "auto" is diagonal for these, within |Q| - 1 layers, else householder, which may have
            fewer layers. "gated_deltaproduct" gives a
            CompiledModel, whose `model` is an ordinary SequenceModel.
        method: of `decompose`. "auto" tries first whether one layer is enough.
        delay: how a layer gets to know the old state of the one before: from that layer's output
            one token late, "shift", or from a state twice as large that remembers it, "state"
            (Theorem 4, but for its bound on the size of a state).
        dtype: the number type of the tables; it must hold all numbers that are read, in bfloat16
            at most 256.
    """
    one_of("target", target, TARGETS)
    one_of("method", method, METHODS)
    one_of("delay", delay, DELAYS)
    check_type("dtype", dtype, torch.dtype, "a torch.dtype")
    if not dtype.is_floating_point:
        raise UserError(f"dtype must be a floating-point type, such as torch.float32; got {dtype}")
    if target == MODEL:
        return _model(language, method, delay, dtype)
    if target == "auto" and delay == "state":
        target = "householder"  # gates cannot move a state to where it is remembered
    plan = _plan(language, target, method)
    dfa, stages = plan.dfa, plan.stages
    if target == "auto":
        target = "diagonal" if all(map(_is_diagonal, stages)) else "householder"
    for stage in stages:
        if target == "diagonal" and not _is_diagonal(stage):
            _refuse_diagonal(dfa, plan.cascade.method if plan.cascade else method)
    layers: list[Layer] = []
    for i, stage in enumerate(stages, 1):
        remembers = delay == "state" and i < len(stages)
        if remembers and target == "diagonal":
            raise UserError(
                "delay 'state' moves a layer's state from one half to the other, which target "
                "'diagonal' cannot; delay 'shift' can do without"
            )
        layers.append(LAYERS[target](remembering(stage) if remembers else stage, remembers))
    origin = f"{plan.origin}, target {target}"
    net = CompiledRNN(dfa, plan.first, layers, origin, cascade=plan.cascade, instead=plan.instead)
    return net.to(dtype)


def _model(
    language: str | DFA | Group | Cascade, method: str, delay: str, dtype: torch.dtype
) -> CompiledModel:
    """Of a cascade, or of one layer if all symbols are permutations and resets."""
    if delay != "shift":
        raise UserError(f"target {MODEL!r} shifts by layers of its own: delay must be 'shift'")
    plan = _plan(language, MODEL, method)
    origin = f"{plan.origin}, target {MODEL}"
    compiled = build_model(plan.dfa, plan.first, plan.stages, origin)
    compiled.model.to(dtype)
    return compiled


class _Plan(NamedTuple):
    """What is to be compiled."""

    dfa: DFA
    first: Ints  # [symbols]: the first layer's contexts
    stages: list[Stage]
    origin: str  # in words
    cascade: Cascade | None  # that the stages are the levels of
    instead: str = ""  # what else would do, in words


def _plan(language: str | DFA | Group | Cascade, target: str, method: str) -> _Plan:
    if isinstance(language, Cascade) and not language.levels:  # one state: nothing to keep
        language = language.dfa
    if not isinstance(language, Cascade):
        language = find_language(language).value
    if isinstance(language, Group):
        dfa, stage = group_stage(language)
        if method == "auto" and target not in ("diagonal", MODEL):
            origin = f"one layer for {language.name}"
            return _Plan(dfa, np.arange(len(dfa.alphabet)), [stage], origin, None)
        language = dfa
    instead = ""
    if isinstance(language, DFA):
        dfa = language.minimal()
        single = one_stage(dfa) if method == "auto" or dfa.states == 1 else None
        if target == MODEL and single is not None and not _is_layer_of_model(single):
            single = None
        gates = target in ("auto", "diagonal")
        found = None
        if single is None or (gates and not _is_diagonal(single)):
            found = _of_gates(dfa, target) if gates and method == "auto" else None
            if target == "auto" and found is not None and single is not None:
                size = single.points.shape[1]
                instead = f"target 'householder' would have one layer, with a state of size {size}"
            single = None if found is not None or target == "diagonal" else single
        if single is not None:
            return _Plan(dfa, np.arange(len(dfa.alphabet)), [single], "one layer", None)
        cascade = found or decompose(dfa, method)
    else:
        cascade = language
    origin = f"a cascade of {counted(len(cascade.levels), 'layer')} ({cascade.method})"
    stages = [one_hot(level) for level in cascade.levels]
    return _Plan(cascade.dfa, cascade.first, stages, origin, cascade, instead)


def _of_gates(dfa: DFA, target: str) -> Cascade | None:
    """A cascade that never permutes, as star-free languages have.

    For "auto" it must not have more levels than `decompose` promises.
    """
    if find_counters(dfa, None):  # one of them has to be permuted
        return None
    for method in ("auto", "holonomy", "strict"):
        try:
            cascade = decompose(dfa, method)
        except UserError:  # a limit
            continue
        short = target == "diagonal" or len(cascade.levels) < dfa.states
        if short and not any(level.permutations for level in cascade.levels):
            return cascade
    return None


def _is_layer_of_model(stage: Stage) -> bool:
    """Whether it permutes and resets only, and the head can tell the states by adding scores.

    A sink as the vector 0 takes projectors, for which cascades have no need.
    """
    forgets = (stage.points < 0).any(axis=1)
    resets = (stage.points < 0).all(axis=1) & (stage.writes >= 0)
    told = len(np.unique(stage.out[0])) == stage.out.shape[1]
    return bool((forgets == resets).all()) and (stage.codewords.shape[2] == 1 or told)


def _is_diagonal(stage: Stage) -> bool:
    """Whether every context keeps the whole state or forgets it."""
    kept = (stage.points == np.arange(stage.points.shape[1])).all(axis=1)
    return bool((kept | (stage.points < 0).all(axis=1)).all())


def _refuse_diagonal(dfa: DFA, method: str) -> None:
    if all(not level.permutations for level in decompose(dfa, "strict").levels):
        raise UserError(
            f"method {method!r} has layers that permute, which target 'diagonal' cannot; method "
            "'strict' has none for this language"
        )
    raise UserError(
        "target 'diagonal' cannot do this language: it is not star-free, so some layer has to "
        "permute its states, and gates of 0 and 1 do not; target 'householder' can"
    )
