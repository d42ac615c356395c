"""The compiler: text to DFA, DFA to cascade, cascade to stages, stages to a network or a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, overload

import numpy as np
import torch

from statetrack.automata import DFA, Group
from statetrack.automata.counters import find_counters
from statetrack.compiler.blocks_to_stages import group_to_blocks
from statetrack.compiler.cascade import Cascade
from statetrack.compiler.cascade_to_stages import Stage, cascade_to_stages
from statetrack.compiler.compiled import Source
from statetrack.compiler.dfa_to_cascade import METHODS, dfa_to_cascade
from statetrack.compiler.dfa_to_stage import dfa_to_stage, group_to_stage
from statetrack.compiler.model import CompiledModel
from statetrack.compiler.network import CompiledRNN
from statetrack.compiler.proof import Ints
from statetrack.compiler.stages_to_model import fits_model, stages_to_model
from statetrack.compiler.stages_to_network import LAYERS, stages_to_layers
from statetrack.compiler.text_to_dfa import Language, find_language, word_problem
from statetrack.compiler.wording import counted
from statetrack.config import at_least, one_of
from statetrack.devices import on_cpu
from statetrack.errors import UserError, check_type

Given = str | DFA | Group | Cascade
Tables = Literal["auto", "householder", "dense", "diagonal"]
Model = Literal["gated_deltaproduct"]
Dtype = torch.dtype

MODEL = "gated_deltaproduct"
TARGETS = ("auto", *LAYERS, MODEL)
DELAYS = ("shift", "state")


@overload
def compile(
    language: Given,
    target: Tables = ...,
    method: str = ...,
    delay: str = ...,
    dtype: Dtype = ...,
    tokens_per_element: int = ...,
) -> CompiledRNN: ...
@overload
def compile(
    language: Given,
    target: Model,
    method: str = ...,
    delay: str = ...,
    dtype: Dtype = ...,
    tokens_per_element: int = ...,
) -> CompiledModel: ...
@overload
def compile(
    language: Given,
    target: str,
    method: str = ...,
    delay: str = ...,
    dtype: Dtype = ...,
    tokens_per_element: int = ...,
) -> CompiledRNN | CompiledModel: ...
@on_cpu()
def compile(
    language: Given,
    target: str = "auto",
    method: str = "auto",
    delay: str = "shift",
    dtype: Dtype = torch.float32,
    tokens_per_element: int = 1,
) -> CompiledRNN | CompiledModel:
    """Compile a language into a linear RNN that computes the state of its DFA after each symbol.

    It does so exactly and at any length, and is made on the CPU:

        net = compile("(ab)*")
        assert net.accepts(["abab", "aba"]) == [True, False]
        assert net.prove().holds

    Args:
        language: a regular expression; the name of a task with an automaton, such as "tomita3"; a
            DFA or its file, of which the minimal one is taken; a group or its name, such as "S5",
            for its word problem with all elements as symbols; or a cascade.
        target: "householder" runs on `delta_product`, "dense" on a blocked scan, "diagonal" on
            `gated_linear_attention` with gates of 0 and 1, which suffice for star-free languages;
            "auto" is diagonal for these, within |Q| - 1 layers, else householder.
            "gated_deltaproduct" gives a CompiledModel, whose `model` is an ordinary SequenceModel.
        method: of `decompose`. "auto" tries first whether one layer is enough.
        delay: how a layer gets the old state of the one before: from that layer's output one token
            late, "shift", or from a state twice as large that keeps it, "state" (Theorem 4, except
            for its bound on the size of a state).
        dtype: the number type of the tables; it must hold all numbers that are read, in bfloat16
            at most 256.
        tokens_per_element: n > 1, for a group: an element is followed by n - 1 fillers, as in the
            task of that option. Every layer then has one Householder factor per token, which for
            S5 takes n >= 4.

    Raises:
        UserError: the language cannot be read, a limit is exceeded, or the target cannot do it.
    """
    _check_options(target, method, delay, dtype)
    at_least("tokens_per_element", tokens_per_element, 1)
    if target == "auto" and delay == "state":
        target = "householder"  # gates cannot move a state to where it is kept
    if isinstance(language, Cascade):
        if tokens_per_element > 1:
            raise UserError("tokens_per_element is for groups such as S5, not for a cascade")
        found, plan = None, _plan_cascade(language, target, method)
    else:
        found = find_language(language)  # text to DFA or group
        plan = (
            _plan(found.value, target, method)  # DFA to cascade, or to one stage
            if tokens_per_element == 1
            else _plan_blocks(found, target, method, delay, tokens_per_element)
        )
    cascade = plan.cascade
    stages = [*plan.stages] if cascade is None else cascade_to_stages(cascade)
    compiled: CompiledRNN | CompiledModel
    if target == MODEL:
        model = stages_to_model(plan.dfa, plan.first, stages).to(dtype)
        compiled = CompiledModel(plan.dfa, model, plan.title)
        made = MODEL
    else:
        made = _network_target(target, plan, stages, method)
        layers = stages_to_layers(stages, made, delay)
        tree = plan.tree if cascade is None else cascade.tree
        net = CompiledRNN(plan.dfa, plan.first, layers, plan.title, tree=tree)
        compiled = net.to(dtype)
    compiled.settings = f"target {made}"
    if cascade is not None:
        compiled.settings = f"method {cascade.method}, {compiled.settings}"
    compiled.alternative = plan.alternative
    compiled.forms = (*stages,) if cascade is None else (cascade, *stages)
    compiled.source = Source(found, target, method, delay, tokens_per_element) if found else None
    return compiled


def _check_options(target: str, method: str, delay: str, dtype: torch.dtype) -> None:
    one_of("target", target, TARGETS)
    one_of("method", method, METHODS)
    one_of("delay", delay, DELAYS)
    check_type("dtype", dtype, torch.dtype, "a torch.dtype")
    if not dtype.is_floating_point:
        raise UserError(f"dtype must be a floating-point type, such as torch.float32; got {dtype}")
    if target == MODEL and delay != "shift":
        raise UserError(f"target {MODEL!r} shifts by layers of its own: delay must be 'shift'")


class _Plan(NamedTuple):
    """A DFA as one stage, or as a cascade whose stages are still to be made."""

    dfa: DFA
    first: np.ndarray[tuple[int], np.dtype[np.int64]]  # [symbols]: the first stage's rules
    title: str
    cascade: Cascade | None = None
    stages: tuple[Stage, ...] = ()
    alternative: str = ""  # a target that would need fewer layers, in words
    tree: Sequence[Ints] | None = None  # of stages that are levels without a cascade


def _plan(language: DFA | Group, target: str, method: str) -> _Plan:
    """Plan one stage if that is enough, else a cascade."""
    if isinstance(language, Group):
        group, language = language, word_problem(language)
        if method == "auto" and target not in ("diagonal", MODEL):
            return _plan_stage(language, group_to_stage(group))
    dfa = language.minimal()
    single = dfa_to_stage(dfa) if method == "auto" or dfa.states == 1 else None
    if target == MODEL and single is not None and not fits_model(single):
        single = None
    if target in ("auto", "diagonal") and (single is None or not single.is_diagonal()):
        gates = _gates_only(dfa, target) if method == "auto" else None
        if gates is not None:
            plan = _plan_cascade(gates, target, method)
            if target == "diagonal" or single is None:
                return plan
            one = f"one layer, with a state of size {single.axis_map.shape[1]}"
            return plan._replace(alternative=f"Target 'householder' would have {one}.")
        if target == "diagonal":
            single = None
    if single is not None:
        return _plan_stage(dfa, single)
    return _plan_cascade(dfa_to_cascade(dfa, method), target, method)


def _plan_stage(dfa: DFA, stage: Stage) -> _Plan:
    return _Plan(dfa, np.arange(len(dfa.alphabet)), "one layer", None, (stage,))


def _plan_blocks(language: Language, target: str, method: str, delay: str, tokens: int) -> _Plan:
    """Plan one Householder factor per token, for a group with several tokens per element."""
    if not isinstance(language.value, Group):
        raise UserError(f"tokens_per_element is for groups such as S5; {language.text} is none")
    if target not in ("auto", "householder", "dense") or method != "auto" or delay != "shift":
        raise UserError(
            "tokens_per_element has one construction: target must be auto, householder or dense, "
            "method auto and delay shift"
        )
    blocks, last = group_to_blocks(language.value, tokens)
    stages = (*blocks.stages, last)
    title = f"a cascade of {len(stages)} layers"
    return _Plan(blocks.dfa, blocks.first, title, None, stages, tree=blocks.tree)


def _plan_cascade(cascade: Cascade, target: str, method: str) -> _Plan:
    if not cascade.levels:  # one state: nothing to keep
        return _plan(cascade.dfa, target, method)
    title = f"a cascade of {counted(len(cascade.levels), 'layer')}"
    return _Plan(cascade.dfa, cascade.first, title, cascade)


def _gates_only(dfa: DFA, target: str) -> Cascade | None:
    """A cascade that never permutes, as star-free languages have.

    For "auto" it must not have more levels than `decompose` promises.
    """
    if find_counters(dfa, None):  # one of them has to be permuted
        return None
    for method in ("auto", "holonomy", "strict"):
        try:
            cascade = dfa_to_cascade(dfa, method)
        except UserError:  # a limit
            continue
        short = target == "diagonal" or len(cascade.levels) < dfa.states
        if short and not any(level.permutations for level in cascade.levels):
            return cascade
    return None


def _network_target(target: str, plan: _Plan, stages: list[Stage], method: str) -> str:
    """Resolve "auto", and raise a UserError if "diagonal" cannot compute the stages."""
    diagonal = all(stage.is_diagonal() for stage in stages)
    if target == "auto":
        return "diagonal" if diagonal else "householder"
    if target == "diagonal" and not diagonal:
        if all(not level.permutations for level in dfa_to_cascade(plan.dfa, "strict").levels):
            method = plan.cascade.method if plan.cascade else method
            raise UserError(
                f"method {method!r} has layers that permute, which target 'diagonal' cannot; "
                "method 'strict' has none for this language"
            )
        raise UserError(
            "target 'diagonal' cannot do this language: it is not star-free, so some layer has to "
            "permute its states, and gates of 0 and 1 do not; target 'householder' can"
        )
    return target
