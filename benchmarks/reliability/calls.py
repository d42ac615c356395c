"""Calls of public functions with good arguments, each of which can be replaced by an odd value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import statetrack
import statetrack as st
from statetrack import automata, compiler
from statetrack.layers import MIXERS, MixerConfig
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import Task, generator, make_task
from statetrack.testing import check_layer
from statetrack.training import RunConfig, TrainingConfig, curve

B, T, H, K = 2, 5, 2, 4

# made anew for every call, since a call may write into them
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "5": lambda: 5,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "10**9": lambda: 10**9,
    "10**30": lambda: 10**30,
    "text": lambda: "nope",
    "markup": lambda: "[/]",
    "empty text": lambda: "",
    "bytes": lambda: b"x",
    "list": lambda: [1, 2],
    "empty list": list,
    "nested list": lambda: [[0, 1], [1, 0]],
    "ragged list": lambda: [[0], [1, 2]],
    "words": lambda: ["ab", "ba"],
    "dict": lambda: {"a": 1},
    "tuple": lambda: (3, 4),
    "object": object,
    "path": lambda: Path("nowhere"),
    "numpy floats": lambda: np.zeros((B, T)),
    "numpy ints": lambda: np.zeros((B, T), dtype=np.int64),
    "numpy 4-dimensional": lambda: np.zeros((B, T, H, K), dtype=np.float32),
    "numpy number": lambda: np.int64(3),
    "floats [2, 5]": lambda: torch.zeros(B, T),
    "floats [2, 5, 2, 4]": lambda: torch.zeros(B, T, H, K),
    "floats [2, 5, 8]": lambda: torch.zeros(B, T, H * K),
    "float64 [2, 5, 2, 4]": lambda: torch.zeros(B, T, H, K, dtype=torch.float64),
    "complex [2, 5, 2, 4]": lambda: torch.zeros(B, T, H, K, dtype=torch.complex64),
    "ints [2, 5]": lambda: torch.ones(B, T, dtype=torch.int64),
    "ints [2, 5, 2, 4]": lambda: torch.ones(B, T, H, K, dtype=torch.int64),
    "large ints [2, 5]": lambda: torch.full((B, T), 10**9),
    "negative ints [2, 5]": lambda: torch.full((B, T), -7),
    "uint8 [2, 5]": lambda: torch.ones(B, T, dtype=torch.uint8),
    "bools [2, 5]": lambda: torch.ones(B, T, dtype=torch.bool),
    "ints [2]": lambda: torch.tensor([0, 3]),
    "scalar tensor": lambda: torch.tensor(1.0),
    "empty tensor": lambda: torch.zeros(0),
    "no batch": lambda: torch.zeros(0, T, dtype=torch.int64),
    "no time": lambda: torch.zeros(B, 0, H, K),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nan tensor": lambda: torch.full((B, T, H, K), float("nan")),
}


@dataclass(frozen=True)
class Call:
    """A function and arguments that it takes; `make` builds both in the process of the call."""

    arguments: tuple[str, ...]
    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]


CALLS: dict[str, Call] = {}


def _call(name: str, arguments: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        CALLS[name] = Call(tuple(arguments.split()), make)
        return make

    return add


@_call("delta_rule", "q k v beta g scale initial_state cu_seqlens backend")
def _delta_rule() -> Any:
    x = torch.randn(B, T, H, K)
    return statetrack.delta_rule, {"q": x, "k": x, "v": x, "beta": torch.rand(B, T, H)}


@_call("delta_product", "q k v beta g scale initial_state cu_seqlens backend num_householder")
def _delta_product() -> Any:
    x, y = torch.randn(B, T, H, K), torch.randn(B, 2 * T, H, K)
    given = {"q": x, "k": y, "v": y, "beta": torch.rand(B, 2 * T, H), "num_householder": 2}
    return statetrack.delta_product, given


@_call("gated_linear_attention", "q k v g decay scale initial_state cu_seqlens backend")
def _gated_linear_attention() -> Any:
    x = torch.randn(B, T, H, K)
    return statetrack.gated_linear_attention, {"q": x, "k": x, "v": x, "g": -torch.rand(B, T, H)}


@_call("selective_scan", "u delta A B C D z initial_state backend")
def _selective_scan() -> Any:
    u, b = torch.randn(B, T, 8), torch.randn(B, T, K)
    return statetrack.selective_scan, {
        "u": u, "delta": torch.rand(B, T, 8), "A": -torch.rand(8, K), "B": b, "C": b,
    }  # fmt: skip


def _layer(name: str) -> Any:
    small = {"delta_net": {"num_heads": 2}, "mamba2": {"head_dim": 8}}
    return MixerConfig.class_for(name)(**small.get(name, {})).build(H * K * 2)


def _add_layers(name: str) -> None:
    @_call(f"{name}.forward", "x state mask cu_seqlens")
    def _forward() -> Any:
        return _layer(name), {"x": torch.randn(B, T, H * K * 2)}

    @_call(f"{name}.step", "x_t state")
    def _step() -> Any:
        layer = _layer(name)
        return layer.step, {"x_t": torch.randn(B, H * K * 2), "state": layer.init_state(B)}

    @_call(f"{name}.transitions", "x")
    def _transitions() -> Any:
        return _layer(name).transitions, {"x": torch.randn(B, T, H * K * 2)}

    @_call(f"{name}", "hidden_size config allow_neg_eigval")
    def _make() -> Any:
        return MIXERS[name].layer, {"hidden_size": 16}


for _name in MIXERS:
    _add_layers(_name)


def _model(vocab: int = 3) -> SequenceModel:
    return SequenceModel(ModelConfig(vocab_size=vocab, hidden_size=16, num_layers=1))


@_call("SequenceModel", "config")
def _sequence_model() -> Any:
    return SequenceModel, {"config": ModelConfig()}


@_call("SequenceModel.forward", "tokens state mask cu_seqlens")
def _model_forward() -> Any:
    return _model(), {"tokens": torch.ones(B, T, dtype=torch.int64)}


@_call("chunked_backward", "tokens chunk_length state mask cu_seqlens")
def _chunked_backward() -> Any:
    tokens = torch.ones(B, T, dtype=torch.int64)
    loss = statetrack.chunk_cross_entropy(tokens)
    given = {"model": _model(), "tokens": tokens, "loss": loss, "chunk_length": 2}
    return statetrack.chunked_backward, given


@_call("chunk_cross_entropy", "targets ignore_index")
def _chunk_cross_entropy() -> Any:
    return statetrack.chunk_cross_entropy, {"targets": torch.ones(B, T, dtype=torch.int64)}


@_call("SequenceModel.step", "token state")
def _model_step() -> Any:
    model = _model()
    return model.step, {"token": torch.ones(B, dtype=torch.int64), "state": model.init_state(B)}


@_call("SequenceModel.transitions", "tokens")
def _model_transitions() -> Any:
    return _model().transitions, {"tokens": torch.ones(B, T, dtype=torch.int64)}


@_call(
    "ModelConfig",
    "vocab_size hidden_size num_layers mixer norm norm_after mlp mlp_size experts head",
)
def _model_config() -> Any:
    return ModelConfig, {}


@_call("ExpertsConfig", "count top_k size shared_size normalize layers")
def _experts_config() -> Any:
    return statetrack.ExpertsConfig, {}


@_call("TrainingConfig", "steps batch_size lr betas clip schedule seed dataset_size precision")
def _training_config() -> Any:
    return TrainingConfig, {}


@_call("RunConfig", "task model training")
def _run_config() -> Any:
    return RunConfig, _config().__dict__


@cache
def _config() -> RunConfig:
    model = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mlp="none")
    training = TrainingConfig(steps=2, batch_size=4, max_length=8)
    return RunConfig(make_task("parity"), model, training)


@_call("train", "config folder")
def _train() -> Any:
    return statetrack.train, {"config": _config(), "folder": Path("out/new")}


@_call("make_task", "name supervision")
def _make_task() -> Any:
    return make_task, {"name": "parity"}


@_call("Task.solve", "tokens")
def _solve() -> Any:
    return _task().solve, {"tokens": np.ones((B, T), dtype=np.int64)}


@_call("Task.sample", "rng lengths")
def _sample() -> Any:
    return _task().sample, {"rng": generator(0, "test", 0), "lengths": np.array([4, 5])}


@_call("Task.majority", "low high")
def _majority() -> Any:
    return _task().majority, {"low": 4}


@cache
def _task() -> Task:
    return make_task("S3")


@_call("evaluate", "model task lengths samples split data_seed exclude")
def _evaluate() -> Any:
    return statetrack.evaluate, {"model": _model(), "task": "parity", "lengths": 5, "samples": 2}


@_call("curve", "model task max_length samples split data_seed exclude")
def _curve() -> Any:
    return curve, {"model": _model(), "task": "parity", "max_length": 5, "samples": 2}


@_call("Run.open", "folder")
def _run_open() -> Any:
    return statetrack.Run.open, {"folder": Path("run")}


@_call("Run.model", "step")
def _run_model() -> Any:
    return statetrack.Run.open(Path("run")).model, {}


@_call("load", "folder")
def _load() -> Any:
    return statetrack.load, {"folder": Path("run")}


@_call("st.compile", "language target method delay dtype tokens_per_element")
def _compile() -> Any:
    return st.compile, {"language": "(ab)*"}


@_call("st.explain", "given")
def _explain() -> Any:
    return st.explain, {"given": "(ab)*"}


@_call("compiler.decompose", "language method")
def _decompose() -> Any:
    return compiler.decompose, {"language": "(ab)*"}


@_call("CompiledRNN.accepts", "given")
def _accepts() -> Any:
    return st.compile("(ab)*").accepts, {"given": "ab"}


@_call("CompiledRNN.run", "tokens carry backend")
def _run() -> Any:
    return st.compile("(ab)*").run, {"tokens": torch.zeros(B, T, dtype=torch.int64)}


@_call("CompiledModel.accepts", "given")
def _model_accepts() -> Any:
    return st.compile("S3", "gated_deltaproduct").accepts, {"given": "0 1"}


@_call("st.harden", "model validation orders")
def _harden() -> Any:
    batch = _task().sample(generator(0, "test", 0), np.array([4, 5]))
    return st.harden, {"model": _model(len(_task().vocab)), "validation": batch}


@_call(
    "st.diagnose", "model word checkpoint vocab tolerance max_tokens max_length samples precision"
)
def _diagnose() -> Any:
    return st.diagnose, {"model": Path("run"), "max_length": 0, "samples": 2}


@_call("check_layer", "factory only title unsupported exact perturb")
def _check_layer() -> Any:
    return check_layer, {"factory": lambda: _layer("delta_net"), "only": ["chunks"]}


@_call("automata.from_regex", "pattern alphabet")
def _from_regex() -> Any:
    return automata.from_regex, {"pattern": "(ab)*"}


@_call("automata.group", "name")
def _group() -> Any:
    return automata.group, {"name": "S3"}


@_call("automata.DFA", "alphabet delta start accepting outputs")
def _dfa() -> Any:
    return automata.DFA, {
        "alphabet": ("a", "b"), "delta": [[0, 1], [1, 0]], "start": 0, "accepting": [True, False],
    }  # fmt: skip


@_call("DFA.accepts", "word")
def _dfa_accepts() -> Any:
    return automata.from_regex("(ab)*").accepts, {"word": "ab"}


@_call("DFA.run", "words start")
def _dfa_run() -> Any:
    return automata.from_regex("(ab)*").run, {"words": np.zeros((B, T), dtype=np.int64)}
