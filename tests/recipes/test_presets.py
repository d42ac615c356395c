"""The recipes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from statetrack.errors import UserError
from statetrack.models import SequenceModel
from statetrack.recipes import presets
from statetrack.training import RunConfig

MIXERS = ("delta_net", "mamba")
ARITHMETIC = ("modular_arithmetic", "modular_arithmetic_brackets")
FORMAL = ("parity", *ARITHMETIC)
GROUPS = ("S5", "S5_only_swaps", "S5_up_to_3", "Z60")
PAPER = (
    "parity, modular_arithmetic, modular_arithmetic_brackets, S5, S5_only_swaps, S5_up_to_3, Z60"
)

RECIPES = [
    *((presets.paper, m, t) for t in (*FORMAL, *GROUPS) for m in MIXERS),
    (presets.paper, "diagonal_rnn", "parity"),
    *((presets.repo, m, t) for t in FORMAL for m in MIXERS),
    *((presets.demo, m, "parity") for m in MIXERS),
    (presets.demo, "delta_net", "S5_only_swaps"),
]
EVERY = pytest.mark.parametrize(
    ("recipe", "mixer", "task"),
    [pytest.param(*r, id=f"{r[0].__name__} {r[1]} {r[2]}") for r in RECIPES],
)
MIXER = pytest.mark.parametrize("mixer", MIXERS)


def without_the_switch(config: RunConfig) -> RunConfig:
    (mixer,) = set(config.model.mixers)
    model = replace(config.model, mixer=replace(mixer, allow_neg_eigval=False))
    return replace(config, model=model)


@EVERY
def test_both_ranges_differ_in_the_switch_alone(recipe: Any, mixer: str, task: str) -> None:
    positive = recipe(mixer, task, allow_neg_eigval=False, seed=7)
    negative = recipe(mixer, task, allow_neg_eigval=True, seed=7)
    assert positive != negative
    assert without_the_switch(negative) == positive
    assert positive.training.seed == 7


@EVERY
def test_it_is_of_that_mixer_and_task_and_can_be_built(recipe: Any, mixer: str, task: str) -> None:
    config = recipe(mixer, task, allow_neg_eigval=True)
    assert {m.name for m in config.model.mixers} == {mixer}
    assert config.task.name == task
    assert config.model.vocab_size == len(config.task.vocab)
    assert SequenceModel(config.model).num_parameters() > 0


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_negative_eigenvalues_only_if_asked_for(preset: str) -> None:
    recipe: Any = presets.PRESETS[preset]
    assert recipe("mamba", "parity") == recipe("mamba", "parity", allow_neg_eigval=False)


@pytest.mark.parametrize(
    ("recipe", "task"),
    [(presets.paper, "parity"), (presets.paper, "S5"), (presets.repo, "parity"),
     (presets.demo, "parity")],
)  # fmt: skip
def test_an_unknown_mixer(recipe: Any, task: str) -> None:
    with pytest.raises(UserError, match=r"unknown mixer 'lstm'; known: .*delta_net.*, mamba"):
        recipe("lstm", task, allow_neg_eigval=True)


@pytest.mark.parametrize(
    ("recipe", "mixer", "task", "message"),
    [
        (presets.paper, "mamba", "nope", "unknown task 'nope'"),
        (presets.paper, "mamba", "board", f"the paper has no board; it has {PAPER}"),
        (presets.paper, "mamba", "chomsky/even_pairs", "the paper has no chomsky/even_pairs"),
        (presets.paper, "mamba", "A5", f"the paper has no A5; it has {PAPER}"),
        (presets.paper, "mamba", "S6", f"the paper has no S6; it has {PAPER}"),
        (presets.paper, "mamba", "S5_up_to_4", f"the paper has no S5_up_to_4; it has {PAPER}"),
        (presets.repo, "mamba", "S5", "no command for S5; known: parity, modular_arithmetic, mod"),
        (presets.repo, "mamba", "nope", "no command for nope"),
        (presets.demo, "mamba", "S5_only_swaps", "the demo has no mamba on S5_only_swaps"),
        (presets.demo, "delta_net", "S5", "the demo has no delta_net on S5"),
    ],
)
def test_an_unknown_task(recipe: Any, mixer: str, task: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        recipe(mixer, task, allow_neg_eigval=True)


@pytest.mark.parametrize(
    ("recipe", "mixer", "task", "message"),
    [
        (presets.paper, "mlstm", "S5", "Figure 4 has no mlstm; it has delta_net, mamba, full_mat"),
        (presets.paper, "attention", "Z60", "the paper's Figure 4 has no attention"),
        (presets.paper, "full_matrix", "parity", "the paper's Table 3 has no full_matrix; it has "),
        (presets.paper, "diagonal_rnn", "modular_arithmetic", "Table 3 has no diagonal_rnn; it ha"),
        (presets.paper, "diagonal_rnn", "S5", "the paper's Figure 4 has no diagonal_rnn; it has "),
        (presets.repo, "attention", "parity", "the authors' code has no attention; it has mlstm, "),
        (presets.repo, "full_matrix", "parity", "the authors' code has no full_matrix"),
    ],
)
def test_a_model_that_the_paper_does_not_have_there(
    recipe: Any, mixer: str, task: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        recipe(mixer, task)


def test_the_tables_other_models() -> None:
    """Steps and lengths are everyone's; the rest is as the paper has it for each of them."""

    def told(mixer: str, task: str) -> tuple[object, ...]:
        config = presets.paper(mixer, task)
        t, m = config.training, config.model
        (layer,) = set(m.mixers)
        assert layer.name == mixer
        assert (t.steps, t.min_length, t.max_length) == (100_000, 3, 40)
        assert (t.lr, t.weight_decay, m.vocab_size) == (1e-3, 0.1, len(config.task.vocab))
        heads = layer.num_heads  # type: ignore[attr-defined]
        return m.num_layers, m.hidden_size, heads, t.batch_size, t.clip, t.decay_groups, m.mlp

    assert told("attention", "parity") == (2, 128, 4, 1024, None, "paper", "swiglu")
    assert told("mlstm", "parity") == (2, 128, 4, 512, None, "standard", "none")
    assert told("slstm", "parity") == (2, 128, 4, 1024, None, "standard", "gated_gelu")
    for task in ARITHMETIC:
        assert told("attention", task) == (3, 128, 4, 1024, 1.0, "paper", "swiglu")
        assert told("mlstm", task) == (3, 64, 1, 512, None, "standard", "none")
        assert told("slstm", task) == (3, 64, 1, 1024, None, "standard", "gated_gelu")


@pytest.mark.parametrize(
    ("task", "gate_init", "parameters"),
    [
        ("parity", "xlstm", 219_792),  # as the package xlstm has them
        ("modular_arithmetic", "standard", 84_870),
        ("modular_arithmetic_brackets", "standard", 85_126),
    ],
)
def test_the_tables_mlstm(task: str, gate_init: str, parameters: int) -> None:
    for switch in (False, True):  # the second is not in the paper, but there
        model = presets.paper("mlstm", task, allow_neg_eigval=switch).model
        (layer,) = set(model.mixers)
        assert layer.gate_init == gate_init  # type: ignore[attr-defined]
        assert layer.allow_neg_eigval is switch
        assert SequenceModel(model).num_parameters() == parameters


@pytest.mark.parametrize(
    ("task", "gate_init", "parameters"),
    [
        ("parity", "xlstm", 215_680),  # as the package xlstm has them
        ("modular_arithmetic", "standard", 174_720),
        ("modular_arithmetic_brackets", "standard", 174_976),
    ],
)
def test_the_tables_slstm(task: str, gate_init: str, parameters: int) -> None:
    model = presets.paper("slstm", task).model
    (layer,) = set(model.mixers)
    assert (layer.gate_init, layer.conv_size) == (gate_init, 0)  # type: ignore[attr-defined]
    assert SequenceModel(model).num_parameters() == parameters
    with pytest.raises(UserError, match="sLSTM has no allow_neg_eigval"):
        presets.paper("slstm", task, allow_neg_eigval=True)


def test_figure_4s_full_matrix() -> None:
    model = presets.paper("full_matrix", "S5").model
    assert (model.num_layers, model.hidden_size, model.embedding) == (1, 127, "one_hot")
    assert (model.norm, model.residual, model.mlp) == ("none", False, "none")
    assert (model.final_norm, model.head) == (False, "none")  # the layer ends in the decoder
    assert model.mixers[0].size == 32  # type: ignore[attr-defined]
    # a matrix 32 by 32 for each token, and the decoder with its bias
    assert SequenceModel(model).num_parameters() == 127 * 32 * 32 + (32 * 32 + 1) * 127
    with_filler = presets.paper("full_matrix", "S5", tokens_per_element=4).model
    assert with_filler.hidden_size == with_filler.vocab_size == 128


def test_the_authors_xlstms() -> None:
    for mixer in ("mlstm", "slstm"):
        for task in FORMAL:
            config = presets.repo(mixer, task)
            t, m = config.training, config.model
            (layer,) = set(m.mixers)
            assert (m.num_layers, m.hidden_size, layer.num_heads) == (2, 128, 4)  # type: ignore[attr-defined]
            assert (m.norm, m.norm_eps, m.final_norm) == ("layer", 1e-5, True)
            assert m.initializer_range == pytest.approx(0.0559, abs=1e-4)  # sqrt(2 / (5 * 128))
            assert layer.conv_size == {"mlstm": 4, "slstm": 0}[mixer]  # type: ignore[attr-defined]
            assert (t.batch_size, t.weight_decay, t.decay_groups) == (256, 0.1, "standard")
            warmup = {("mlstm", "parity"): 0}.get((mixer, task), t.steps // 10)
            assert t.warmup * t.steps == warmup
            assert t.steps == (20_000 if task == "parity" else 100_000)


# -- the paper ------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_figure_1(switch: bool) -> None:
    config = presets.paper("diagonal_rnn", "parity", allow_neg_eigval=switch, seed=2)
    t, m = config.training, config.model
    assert (t.steps, t.batch_size, t.lr, t.min_lr) == (20_000, 256, 1e-3, 1e-6)
    assert (t.warmup, t.weight_decay, t.clip) == (0.0, 0.0, None)
    assert (t.min_length, t.max_length, t.seed, t.data_seed) == (3, 40, 2, 2)
    assert (t.eval_every, t.eval_lengths) == (200, ("40-256",))
    assert (m.num_layers, m.hidden_size, m.norm, m.final_norm) == (1, 10, "layer", True)
    assert (m.residual, m.mlp, m.tie_embeddings) == (False, "none", False)
    assert m.mixers[0].allow_neg_eigval is switch
    # embedding and head, two norms, W_A and W_B with their biases
    assert SequenceModel(m).num_parameters() == 2 * 3 * 10 + 2 * 10 + 2 * (10 * 10 + 10)


@pytest.mark.parametrize(
    ("task", "vocab", "layers"),
    [("parity", 3, 2), ("modular_arithmetic", 10, 3), ("modular_arithmetic_brackets", 12, 3)],
)
def test_parameters_of_the_transformer(task: str, vocab: int, layers: int) -> None:
    """q, k, v, o and a SwiGLU of 512 in each layer, two norms; embedding, head, the last norm."""
    block = 4 * 128**2 + 3 * 128 * 512 + 2 * 128
    model = presets.paper("attention", task).model
    assert SequenceModel(model).num_parameters() == layers * block + 2 * vocab * 128 + 128


@pytest.mark.parametrize("task", FORMAL)
@MIXER
def test_the_tables_as_in_the_paper(mixer: str, task: str) -> None:
    config = presets.paper(mixer, task)
    layers, clip = (2, None) if task == "parity" else (3, 1.0)
    t, m = config.training, config.model
    assert (t.steps, t.batch_size, t.lr, t.schedule) == (100_000, 1024, 1e-3, "cosine")
    assert (t.warmup, t.min_lr, t.weight_decay, t.clip) == (0.1, 1e-6, 0.1, clip)
    assert (t.min_length, t.max_length, t.betas, t.eps) == (3, 40, (0.9, 0.999), 1e-8)
    assert (t.precision, t.dataset_size, t.decay_groups) == ("fp32", None, "paper")
    assert (t.eval_lengths, t.eval_samples) == (("40-256",), 8192)
    assert t.eval_every == t.steps  # the tables have the last step's
    assert (m.num_layers, m.hidden_size) == (layers, 128)
    layer: Any = m.mixers[0]
    assert layer.conv_size == 4
    assert not layer.allow_neg_eigval  # as in the layers: only if asked for
    if mixer == "delta_net":
        assert (layer.num_heads, m.mlp, m.norm, m.norm_eps) == (4, "swiglu", "rms", 1e-6)
        assert (m.final_norm, m.initializer_range) == (True, 0.02)
    else:
        assert (layer.d_state, layer.expand, m.mlp, m.norm_eps) == (16, 2, "none", 1e-5)
        assert (m.final_norm, m.initializer_range) == (False, None)


@pytest.mark.parametrize("seed", [0, 5])
def test_data_and_seed(seed: int) -> None:
    """Formal tasks have other data for every seed, word problems have the same."""
    assert presets.paper("mamba", "parity", seed=seed).training.data_seed == seed
    assert presets.paper("mamba", "S5", seed=seed).training.data_seed == 0
    assert presets.paper("mamba", "S5", seed=seed).training.seed == seed


@pytest.mark.parametrize("mult", [True, False])
def test_brackets_with_and_without_multiplication(mult: bool) -> None:
    options = {} if mult else {"mult": False}
    config = presets.paper("delta_net", "modular_arithmetic_brackets", **options)
    assert config.task.mult is mult  # type: ignore[attr-defined]
    assert config.model == presets.paper("delta_net", "modular_arithmetic_brackets").model


def test_an_option_that_the_task_does_not_have() -> None:
    with pytest.raises(UserError, match="unknown key 'mult' in task"):
        presets.paper("delta_net", "parity", mult=False)


@pytest.mark.parametrize(
    ("task", "vocab", "count"),
    [("parity", 3, 529_856), ("modular_arithmetic", 10, 796_128),
     ("modular_arithmetic_brackets", 12, 796_640), ("S5", 127, 295_584)],
)  # fmt: skip
@pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])
def test_parameters_of_the_papers_models(task: str, vocab: int, count: int, switch: bool) -> None:
    model = presets.paper("delta_net", task, allow_neg_eigval=switch).model
    assert model.vocab_size == vocab
    assert SequenceModel(model).num_parameters() == count


def test_delta_net_with_5_layers() -> None:
    one, five = (presets.paper("delta_net", "S5", num_layers=n) for n in (1, 5))
    assert one == presets.paper("delta_net", "S5")
    assert (five.task, five.training) == (one.task, one.training)
    assert SequenceModel(five.model).num_parameters() == 1_347_360


@pytest.mark.parametrize("task", GROUPS)
@pytest.mark.parametrize(("mixer", "layers"), [("delta_net", 1), ("mamba", 5)])
def test_word_problems_as_in_the_paper(mixer: str, layers: int, task: str) -> None:
    config = presets.paper(mixer, task)
    t, m = config.training, config.model
    assert (t.steps, t.batch_size, t.dataset_size) == (312_500, 512, 1_600_000)
    assert t.steps * t.batch_size == 100 * t.dataset_size
    assert (t.lr, t.schedule, t.warmup, t.weight_decay, t.clip) == (1e-4, "constant", 0, 0.01, 1)
    assert (t.min_length, t.max_length) == (32, 32)
    assert (t.eval_lengths, t.eval_samples) == (("500",), 40_000)
    assert t.eval_every == t.steps
    assert (m.num_layers, m.hidden_size) == (layers, 128)
    assert config.task.supervision == "dense"  # type: ignore[attr-defined]
    layer: Any = m.mixers[0]
    if mixer == "mamba":
        assert (layer.conv_size, layer.d_state, layer.expand) == (4, 16, 2)
        assert (m.norm, m.norm_eps, m.final_norm, m.head_bias) == ("layer", 1e-5, True, True)
    else:
        assert (layer.conv_size, layer.num_heads, m.mlp) == (0, 4, "swiglu")


@pytest.mark.parametrize(("task", "tokens", "vocab"), [("S5", 4, 128), ("Z60", 2, 68)])
@MIXER
def test_several_tokens_an_element(mixer: str, task: str, tokens: int, vocab: int) -> None:
    config = presets.paper(mixer, task, tokens_per_element=tokens)
    assert config.task.tokens_per_element == tokens  # type: ignore[attr-defined]
    assert config.task.filler == "special"  # type: ignore[attr-defined]
    t = config.training
    assert (t.min_length, t.max_length, config.model.vocab_size) == (64, 64, vocab)
    alone = presets.paper(mixer, task)
    assert replace(t, min_length=32, max_length=32) == alone.training
    assert replace(config.model, vocab_size=vocab - 1) == alone.model


# -- the authors' commands ------------------------------------------------------------------------


@pytest.mark.parametrize("task", FORMAL)
@MIXER
def test_the_authors_commands(mixer: str, task: str) -> None:
    config = presets.repo(mixer, task)
    t = config.training
    steps, warmup, decay = (20_000, 2000, 0.0) if task == "parity" else (100_000, 10_000, 0.1)
    assert (t.steps, t.batch_size, t.weight_decay) == (steps, 256, decay)
    assert t.warmup * t.steps == warmup
    assert (t.precision, t.clip, t.lr, t.schedule) == ("bf16", None, 1e-3, "cosine")
    assert t.min_lr == pytest.approx(1e-6)
    assert (t.min_length, t.max_length, t.dataset_size) == (3, 40, None)
    assert (t.eval_lengths, t.eval_samples) == (("40-256",), 8192)
    assert (t.eval_every, t.decay_groups) == (200, "paper")
    assert (t.seed, t.data_seed) == (42, 42)
    assert (config.model.num_layers, config.model.hidden_size) == (2, 128)
    assert config.model.vocab_size == {"parity": 3, ARITHMETIC[0]: 10, ARITHMETIC[1]: 12}[task]
    conv = {"delta_net": 4, "mamba": 1}[mixer]
    assert config.model.mixers[0].conv_size == conv  # type: ignore[attr-defined]
    if task == "modular_arithmetic_brackets":
        assert config.task.mult is False  # type: ignore[attr-defined]


@pytest.mark.parametrize("lr", [1e-2, 1e-4])
def test_another_learning_rate_ends_elsewhere(lr: float) -> None:
    t = presets.repo("mamba", "parity", lr=lr).training
    assert (t.lr, t.min_lr) == (lr, pytest.approx(1e-3 * lr))
