"""What a model consists of: sizes, the order of its parts, initialisation, copies."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from statetrack.errors import UserError
from statetrack.layers import MIXERS, DeltaNetConfig, MambaConfig, MLSTMConfig, SLSTMConfig
from statetrack.models import ExpertsConfig, ModelConfig, SequenceModel, model_size
from statetrack.models.experts import Experts, experts_naive
from statetrack.recipes import presets
from statetrack.training import TrainingConfig
from statetrack.training.optim import make_optimizer
from tests.models.common import DELTA, MAMBA, MODELS, VOCAB, make_model, small, tokens
from tests.ops.common import assert_close

SWITCH = pytest.mark.parametrize("switch", [False, True], ids=["[0,1]", "[-1,1]"])


@SWITCH
@pytest.mark.parametrize(("mixer", "count"), [("delta_net", 529_856), ("mamba", 233_984)])
def test_parameters_of_the_papers_parity_models(mixer, count, switch):
    config = presets.paper(mixer, "parity", allow_neg_eigval=switch).model
    assert config.vocab_size == 3
    assert all(m.allow_neg_eigval is switch for m in config.mixers)
    assert SequenceModel(config).num_parameters() == count


@SWITCH
@pytest.mark.parametrize(("num_layers", "count"), [(1, 295_584), (5, 1_347_360)])
def test_parameters_of_the_papers_word_problem_models(num_layers, count, switch):
    options = {"num_layers": num_layers, "allow_neg_eigval": switch}
    config = presets.paper("delta_net", "S5", **options).model
    assert config.vocab_size == 127
    assert config.mixer.conv_size == 0
    assert SequenceModel(config).num_parameters() == count


@pytest.mark.parametrize(("conv_size", "count"), [(1, 232_448), (4, 233_984)])
def test_parameters_of_mamba_by_hand(conv_size, count):
    config = ModelConfig(
        vocab_size=3, mixer=MambaConfig(conv_size=conv_size), mlp="none", final_norm=False
    )
    assert SequenceModel(config).num_parameters() == count


def test_tied_embeddings_count_once():
    apart, tied = (SequenceModel(small(mixer=DELTA, tie_embeddings=t)) for t in (False, True))
    assert apart.num_parameters() - tied.num_parameters() == VOCAB * 8
    assert tied.head.weight is tied.embedding.weight


@pytest.mark.parametrize(
    ("mlp", "hidden_size", "size"),
    [
        ("swiglu", 128, 512),
        ("swiglu", 96, 256),
        ("swiglu", 1024, 2816),
        ("gated_gelu", 128, 192),
        ("gated_gelu", 64, 128),
    ],
)
def test_default_width_of_the_mlp(mlp, hidden_size, size):
    model = SequenceModel(ModelConfig(hidden_size=hidden_size, num_layers=1, mlp=mlp))
    weights = {name: p.shape for name, p in model.named_parameters() if ".mlp." in name}
    assert set(weights.values()) == {(2 * size, hidden_size), (hidden_size, size)}


def by_hand(model: SequenceModel, x: torch.Tensor) -> torch.Tensor:
    """The logits from the parts of the model, put together as the protocol says."""
    config = model.config

    def norm(x, module):
        if config.norm == "none":
            return x
        if config.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        return module.weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + config.norm_eps)

    if config.embedding == "learned":
        x = model.embedding.weight[x]
    else:
        x = torch.eye(config.hidden_size).double()[x]
    for block in model.blocks:
        after = block.mixer.config.name in config.norm_after
        y = block.mixer(x if after else norm(x, block.mixer_norm))[0]
        y = norm(y, block.mixer_norm) if after else y
        x = x + y if config.residual else y
        if config.mlp != "none" and block.mixer.config.name in (config.mlp_after or MIXERS):
            y = x if after else norm(x, block.mlp_norm)
            if isinstance(block.mlp, Experts):
                y = experts_naive(block.mlp, y)
            else:
                inner = y @ block.mlp.gate_up.weight.T
                gate, up = inner[..., : config.mlp_size], inner[..., config.mlp_size :]
                act = gate * torch.sigmoid(gate) if config.mlp == "swiglu" else F.gelu(gate)
                y = (act * up) @ block.mlp.down.weight.T
            y = norm(y, block.mlp_norm) if after else y
            x = x + y if config.residual else y
    if config.final_norm:
        x = norm(x, model.norm)
    if config.head == "none":
        return x
    logits = x @ model.head.weight.T
    return logits + model.head.bias if config.head_bias else logits


@pytest.mark.parametrize("config", MODELS)
def test_forward_is_its_parts_in_order(config):
    model = make_model(config)
    x = tokens(2, 9)
    assert_close(model(x)[0], by_hand(model, x), 1e-11)


def test_hybrids_repeat_their_pattern():
    model = SequenceModel(small(mixer=(DELTA, MAMBA), num_layers=4))
    assert [block.mixer.config for block in model.blocks] == [DELTA, MAMBA, DELTA, MAMBA]


def test_an_xlstm_of_7_to_1_has_mlps_after_slstm_only():
    mixers = (*[MLSTMConfig(expand=1.0)] * 7, SLSTMConfig(num_heads=2))
    model = SequenceModel(
        small(mixer=mixers, num_layers=16, mlp="gated_gelu", mlp_after=("slstm",), norm="layer")
    )
    assert [block.mlp is not None for block in model.blocks] == [*[False] * 7, True] * 2
    assert_close(model.double()(tokens(2, 9))[0], by_hand(model, tokens(2, 9)), 1e-11)


def test_one_hot_has_no_embedding_weights():
    model = SequenceModel(small(mixer=DELTA, embedding="one_hot"))
    assert not any("embedding" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("embedding", ["learned", "one_hot"])
@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_tokens_outside_the_vocabulary(embedding, wrong):
    model = make_model(small(mixer=DELTA, embedding=embedding))
    for call in (lambda t: model(t[None]), lambda t: model.step(t, model.init_state(2))):
        with pytest.raises(UserError, match=rf"tokens must be whole numbers in 0\.\.{VOCAB - 1}"):
            call(torch.tensor([0, wrong]))


@pytest.mark.parametrize("embedding", ["learned", "one_hot"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_tokens_of_any_whole_type(embedding, dtype):
    model = make_model(small(mixer=DELTA, embedding=embedding))
    given = torch.tensor([[0, 1, 1]])
    assert torch.equal(model(given.to(dtype))[0], model(given)[0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m(np.zeros((1, 3), dtype=np.int64)), "tokens must be a tensor; got ndarray"),
        (lambda m: m([[0, 1]]), "tokens must be a tensor; got list"),
        (lambda m: m(torch.zeros(1, 3)), "tokens must be whole numbers"),
        (lambda m: m(torch.ones(1, 3, dtype=torch.int64), 5), "the state must be what an earlier"),
        (lambda m: SequenceModel({"hidden_size": 8}), "config must be a ModelConfig; got dict"),
    ],
)
def test_wrong_types(call, says):
    with pytest.raises(UserError, match=says):
        call(make_model(small(mixer=DELTA)))


@pytest.mark.parametrize("config", MODELS)
def test_sizes_are_counted_without_making_the_model(config):
    repeated = replace(config, num_layers=2 * config.num_layers)
    model, size = SequenceModel(repeated), model_size(repeated)
    assert size.parameters == model.num_parameters()
    assert size.modules == len(list(model.modules()))
    assert size.state == sum(part.numel() for layer in model.init_state(1) for part in layer)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_layers": 10**8}, r"parameters in 100,000,000 layers needs .* this machine has"),
        ({"mlp_size": 10**12}, "needs .* PB; this machine has"),
        (
            {"mlp_size": 2**53, "hidden_size": 2**20},
            r"a tensor of shape \[\d+, \d+\], more than torch can address",
        ),
        ({"hidden_size": 10**13}, r"hidden_size must lie in 1..1,048,576; got 10000000000000"),
        ({"mixer": DeltaNetConfig(expand_k=1e300)}, "a tensor with a size above 2"),
        (
            {"experts": ExpertsConfig(count=2**40, size=2**20)},
            r"a tensor of shape \[\d+, \d+, \d+\], more than torch can address",
        ),
        ({"experts": ExpertsConfig(count=10**9)}, "needs .* PB; this machine has"),
        (
            {"experts": ExpertsConfig(count=99, layers=(5,)), "num_layers": 10**8},
            r"parameters in 100,000,000 layers needs .* this machine has",
        ),
        ({"num_layers": 10**30}, "num_layers must be a whole number of at most 2.53"),
    ],
)
def test_sizes_that_no_machine_can_hold(options, says):
    with pytest.raises(UserError, match=says):
        SequenceModel(ModelConfig(**options))


def test_initialisation():
    torch.manual_seed(0)
    model = SequenceModel(ModelConfig(vocab_size=100, num_layers=8, head_bias=True))

    def std(weight):
        assert weight.mean().abs() < 1e-3
        return float(weight.detach().std())

    assert std(model.embedding.weight) == pytest.approx(0.02, rel=0.05)
    assert std(model.head.weight) == pytest.approx(0.02, rel=0.05)
    assert not model.head.bias.any()
    for block in model.blocks:
        assert std(block.mlp.gate_up.weight) == pytest.approx(0.02, rel=0.05)
        assert std(block.mlp.down.weight) == pytest.approx(0.02 / math.sqrt(16), rel=0.05)
        bound = 2**-2.5 * math.sqrt(6 / 256)  # the mixer keeps its own
        assert 0.98 * bound < block.mixer.o_proj.weight.abs().max() <= bound
        assert torch.equal(block.mixer_norm.weight, torch.ones(128))


def test_initialisation_of_xlstms_blocks():
    """The MLP of sLSTM's models, as in xLSTM: its second matrix starts smaller by the depth."""
    torch.manual_seed(0)
    model = SequenceModel(presets.paper("slstm", "parity").model)
    assert (model.config.hidden_size, model.config.num_layers) == (128, 2)
    for block in model.blocks:
        gate_up, down = (w.detach().std().item() for w in block.mlp.parameters())
        assert gate_up == pytest.approx(math.sqrt(2 / (5 * 128)), rel=0.03)
        assert down == pytest.approx(2 / (2 * math.sqrt(128)), rel=0.03)


def test_initialisation_of_experts():
    torch.manual_seed(0)
    experts = ExpertsConfig(count=64, size=32, shared_size=128)
    mlp = SequenceModel(ModelConfig(num_layers=8, experts=experts)).blocks[3].mlp
    for name, weight in mlp.named_parameters():
        std, few = 0.02 / 4 if "down" in name else 0.02, len(weight) == 1
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.2 if few else 0.05)
    default = ModelConfig(num_layers=8, experts=experts, initializer_range=None)
    mlp = SequenceModel(default).blocks[3].mlp
    for weight in mlp.parameters():
        bound = weight.shape[-1] ** -0.5
        assert 0.95 * bound < weight.abs().max() <= bound


def test_other_initialisations():
    torch.manual_seed(0)
    wide = SequenceModel(ModelConfig(vocab_size=100, initializer_range=0.5))
    assert float(wide.head.weight.detach().std()) == pytest.approx(0.5, rel=0.05)
    default = SequenceModel(ModelConfig(vocab_size=100, initializer_range=None))
    assert float(default.embedding.weight.detach().std()) == pytest.approx(1.0, rel=0.05)
    assert 0.98 * 128**-0.5 < default.head.weight.abs().max() <= 128**-0.5


@pytest.mark.parametrize("config", MODELS)
def test_the_same_seed_gives_the_same_weights(config):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(SequenceModel(config).state_dict())
    first, same, other = states
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("config", MODELS)
def test_state_dict_round_trip(config):
    model, other = make_model(config), make_model(config, seed=1)
    x = tokens(2, 9)
    assert not torch.equal(other(x)[0], model(x)[0])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x)[0], model(x)[0])


@pytest.mark.parametrize("config", MODELS)
def test_deepcopy_is_equal_and_apart(config):
    model = make_model(config)
    x = tokens(2, 9)
    before = model(x)[0].detach()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x)[0], before)
    assert twin.num_parameters() == model.num_parameters()  # tied stays tied
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1)
    assert torch.equal(model(x)[0], before)
    assert not torch.equal(twin(x)[0], before)


def test_a_copy_decays_what_the_model_decays():
    model = SequenceModel(small(mixer=(DELTA, MAMBA)))
    for m in (model, copy.deepcopy(model), model.double()):
        names = {id(p): name for name, p in m.named_parameters()}
        groups = make_optimizer(m, TrainingConfig()).param_groups
        spared = {names[id(p)] for g in groups if not g["weight_decay"] for p in g["params"]}
        assert spared == {"blocks.1.mixer.A_log", "blocks.1.mixer.D"}


@pytest.mark.parametrize("config", MODELS)
def test_every_parameter_gets_a_gradient(config):
    model = make_model(config)
    logits, _ = model(tokens(2, 9))
    F.cross_entropy(logits.flatten(0, 1), tokens(2, 9, seed=2).flatten()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@SWITCH
@pytest.mark.parametrize("mixer", [DeltaNetConfig, MambaConfig])
def test_autocast(mixer, switch):
    torch.manual_seed(0)
    model = SequenceModel(ModelConfig(vocab_size=VOCAB, mixer=mixer(allow_neg_eigval=switch)))
    x = tokens(2, 40)
    expected, _ = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), x.flatten())
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert_close(logits, expected, 0.05)
