"""Models that are exact but for noise become exact; others are kept, or refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from statetrack.automata import from_regex
from statetrack.errors import UserError
from statetrack.hardening import delta_net, diagonal, harden, heads
from statetrack.hardening.automaton import agree, read_automaton
from statetrack.hardening.reflections import Head
from statetrack.hardening.roles import assign
from statetrack.hardening.tokens import Seen
from statetrack.layers import (
    AttentionConfig,
    DeltaNetConfig,
    DeltaProductConfig,
    DiagonalRNNConfig,
    GatedDeltaNet,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
    MambaConfig,
)
from statetrack.models import ModelConfig, SequenceModel
from statetrack.tasks import generator, make_task
from statetrack.training import evaluate

PARITY = make_task("parity", supervision="dense")
BATCH = PARITY.sample(generator(0, "validation", 0), np.full(64, 40))


@torch.no_grad()
def noisy_parity() -> SequenceModel:
    """One head whose ones almost flip between 0 and 2 v, whose zeros almost do nothing."""
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=1, conv_size=0)
    config = ModelConfig(
        vocab_size=3, hidden_size=8, num_layers=1, mixer=mixer, embedding="one_hot", norm="none",
        residual=False, mlp="none", final_norm=False, head_bias=True,
    )  # fmt: skip
    model = SequenceModel(config)
    layer = model.blocks[0].mixer
    q, k, v = layer.qkv_proj.weight.split(8)  # [8, token]
    for part in (q, k, v, layer.beta.proj.weight, layer.o_proj.weight, model.head.weight):
        part.zero_()
    q[0, 1:3] = 1.0
    k[0, 2] = 1.0
    k[:2, 1] = torch.tensor([0.2, 1.0])  # leaks
    v[0, 1:3] = torch.tensor([0.5, 1.0])
    layer.beta.proj.weight[0, 1:3] = torch.tensor([-3.5, 4.5])
    layer.o_proj.weight[0, 0] = 1.0
    model.head.weight[2, 0], model.head.bias[:] = 8.0, torch.tensor([-9.0, 9.0, 0.0])
    return model.eval()


def accuracy(model: SequenceModel, length: int) -> float:
    return evaluate(model, PARITY, length, samples=8).token_accuracy


def test_a_noisy_model_becomes_exact():
    model = noisy_parity()
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = harden(model, BATCH)
    assert result.changed
    assert accuracy(model, 2000) < 0.9
    assert accuracy(result.model, 20_000) == 1.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert result.horizon[0].most < 1e4 < 1e9 < result.horizon[1].least
    assert [part.error is not None for part in result.parts] == [True]
    read = result.automaton(PARITY.vocab)
    assert read.states == 2
    assert agree(read, PARITY.automaton())
    assert "Hardened: as good as it was" in str(result)
    assert result.slow == 0


def test_a_flip_is_exact_in_float32():
    model = harden(noisy_parity(), BATCH).model
    ones = torch.full((1, 100_001), PARITY.vocab.index("1"))
    with torch.no_grad():
        early, late = (model(ones[:, :n])[1] for n in (1, 100_001))
    assert early[0].S.any()
    assert torch.equal(early[0].S, late[0].S)


def test_agree_tells_automata_apart():
    read = harden(noisy_parity(), BATCH).automaton(PARITY.vocab)
    task = PARITY.automaton()
    assert not agree(read, from_regex("(0|1)*1"))  # outputs differ: the last symbol
    flipped = tuple("0" if text == "1" else "1" for text in task.outputs)
    assert not agree(read, replace(task, outputs=flipped))
    assert agree(read, replace(task, outputs=None))  # which words it accepts


def test_a_model_that_learned_nothing_is_kept():
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer))
    result = harden(model, BATCH)
    assert result.model is model
    assert not result.changed
    assert str(result).startswith("Kept as it was: no part of it comes near enough to an exact one")
    with pytest.raises(UserError, match=r"the model still fades \(head 0, head 1, "):
        result.automaton(PARITY.vocab)


def test_a_model_that_needs_what_is_rounded_is_kept():
    model = noisy_parity()
    with torch.no_grad():  # the answers of a model that fades: none that lasts gives them
        model.blocks[0].mixer.beta.proj.weight[0, 2] = 3.0  # 2 sigmoid(3) = 1.905
        faded = model(torch.from_numpy(BATCH.tokens))[0].argmax(-1).numpy()
    result = harden(model, BATCH._replace(targets=faded))
    assert result.model is model
    assert "every exact model tried is worse at the training lengths" in result.why
    assert result.loss[1] > result.loss[0] + 0.003


def test_embeddings_that_depend_on_each_other():
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=1, conv_size=0)
    config = ModelConfig(vocab_size=3, hidden_size=2, num_layers=1, mixer=mixer)
    with torch.no_grad():
        model = SequenceModel(config)
        model.embedding.weight[2] = model.embedding.weight[1]
    assert "embeddings of its 2 tokens are not independent" in harden(model, BATCH).why


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_layers": 2, "mixer": (DeltaNetConfig(), AttentionConfig())}, "cannot be hardened"),
        ({"mixer": AttentionConfig()}, "harden knows DeltaNet, DeltaProduct, .*; got Attention"),
        ({"mixer": DeltaNetConfig(conv_size=0)}, r"DeltaNet \[0,1\] cannot be hardened: its eigen"),
        ({"mixer": DeltaNetConfig(allow_neg_eigval=True, conv_size=0, num_v_heads=8)}, "share"),
        ({"mixer": GLAConfig()}, "none flips"),
    ],
)
def test_what_is_refused(changes, says):
    config = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1)
    with pytest.raises(UserError, match=says):
        harden(SequenceModel(replace(config, **changes)), BATCH)


@pytest.mark.parametrize("orders", [(), (0,)])
def test_orders_are_checked(orders):
    with pytest.raises(UserError, match="order"):
        harden(noisy_parity(), BATCH, orders=orders)


def test_weights_give_back_the_heads_that_are_written():
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0)
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer))
    with torch.no_grad():
        model.double().blocks[0].mixer.qkv_proj.weight.mul_(20)
    seen = Seen.of(model, BATCH)
    written = heads.read_heads(model, seen)
    written[0].v[0] = -3.0  # below what SiLU gives: everything is scaled down
    made = heads.write_heads(model, seen, written)
    scale = (made.config.mixers[0].output_norm_eps / mixer.output_norm_eps) ** 0.5
    assert scale == pytest.approx(0.25 / 3)
    for old, new in zip(written, heads.read_heads(made, seen), strict=True):
        assert torch.allclose(old.k, new.k, atol=1e-5)  # the normalisation's epsilon is gone
        assert torch.allclose(old.beta, new.beta, atol=1e-12)
        assert torch.allclose(scale * old.v, new.v, atol=1e-12)


@pytest.mark.parametrize("num_heads", [1, 8])  # of 16 and of 2 numbers
def test_turned_heads_do_the_same(num_heads):
    torch.manual_seed(0)
    mixer = DeltaNetConfig(
        allow_neg_eigval=True, num_heads=num_heads, conv_size=0, output_gate=True, beta_stretch=0.3
    )
    model = SequenceModel(ModelConfig(vocab_size=12, hidden_size=16, num_layers=1, mixer=mixer))
    tokens = torch.randint(12, (8, 30))
    batch = BATCH._replace(tokens=tokens.numpy(), targets=tokens.numpy())
    seen = Seen.of(model.double().eval(), batch)
    layer = model.blocks[0].mixer
    with torch.no_grad():
        layer.qkv_proj.weight *= 1e4  # beside which the epsilon of the keys' norm is nothing
        layer.beta.proj.weight *= 1e3  # some reflect: more than a small head has dimensions
        old = heads.read_heads(model, seen)
        assert all(2 < (head.beta == 2).sum() < 12 for head in old)
        made = heads.write_heads(model, seen, old)
        torch.testing.assert_close(made(tokens)[0], model(tokens)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("steadier", [1.0, 100.0])
def test_a_head_without_memory_says_what_it_said_on_average(steadier):
    torch.manual_seed(0)
    mixer = DeltaNetConfig(allow_neg_eigval=True, num_heads=2, conv_size=0, output_gate=True)
    config = ModelConfig(vocab_size=3, hidden_size=16, num_layers=1, mixer=mixer)
    model = SequenceModel(config).double()
    seen = Seen.of(model, BATCH)
    said = seen.average(heads.listen(model, seen).normed)[:, 1]  # [n, V]
    first, second = heads.read_heads(model, seen)
    written = [first, heads.without_memory(second, said)]
    made = heads.write_heads(model, seen, written, steadier)
    heard = heads.listen(made, seen)
    here = seen.place >= 0
    assert torch.allclose(heard.normed[here][:, 1], said[seen.place[here]], atol=1e-9)
    # and its output is worth as much as it was
    again = heads.write_model(model, seen, heads.listen(model, seen), written, steadier)
    before = heads.listen(model, seen).out[here]
    plain, moved = ((heads.listen(m, seen).out[here] - before).norm() for m in (made, again))
    assert moved < plain


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (DeltaProductConfig, {}),
        (GatedDeltaNetConfig, {}),
        (GatedDeltaNetConfig, {"allow_neg_gate": True}),
        (GatedDeltaProductConfig, {"num_householder": 3}),
    ],
)
def test_products_and_gates(config, options):
    """A head whose tokens almost turn by thirds, or swap, has 3 states, or 6, when it is exact."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    Z3 = make_task("Z3")  # a token that does nothing, two that act, and a BOS
    batch = Z3.sample(generator(0, "validation", 0), np.full(64, 20))
    mixer = config(allow_neg_eigval=True, num_heads=1, conv_size=0, **options)
    shape = ModelConfig(len(Z3.vocab), hidden_size=8, num_layers=1, mixer=mixer)
    model = SequenceModel(shape).double()
    layer = model.blocks[0].mixer
    if isinstance(layer, GatedDeltaNet):  # gates of 0.999
        rate = 5e-4 if layer.config.allow_neg_gate else 1e-3
        for p, value in ((layer.a_proj.weight, 0.0), (layer.A_log, 0.0), (layer.dt_bias, rate)):
            nn.init.constant_(p, math.log(math.expm1(value)) if value else 0.0)
    seen = Seen.of(model, batch)
    gate = heads.read_heads(model, seen)[0].gate
    n = mixer.factors
    angles, beta = torch.zeros(4, n).double(), torch.full((4, n), 0.002).double()
    beta[1:3, :2] = 1.996
    beta[3, 0] = 1.0
    if n == 1:
        angles[2, 0] = math.pi / 3  # two swaps of three
    else:
        angles[1, 1], angles[2, 1] = math.pi / 3, -math.pi / 3  # thirds of a turn, either way
    k = 0.003 * torch.randn(4 * n, 8, generator=rng).double()
    k[:, 0] += angles.flatten().cos()
    k[:, 1] += angles.flatten().sin()
    k = k / k.norm(dim=1, keepdim=True)
    v = torch.randn(4 * n, layer.value_size, generator=rng).double()
    rough = heads.write_heads(model, seen, [Head(k, v, beta.flatten(), gate)])
    with pytest.raises(UserError, match=r"the model still fades \(head 0\)"):
        read_automaton(rough, seen, Z3.vocab)
    found = delta_net.candidates(rough, seen, (1, 2, 3))
    made = next(c.model for c in found if c.inexact == (0, 0))
    exact = heads.ideal(made, seen)
    assert read_automaton(exact, seen, Z3.vocab).states == (3 if n > 1 else 6)
    # the model itself differs from it in that SiLU makes its keys a little shorter
    tokens = torch.from_numpy(batch.tokens)
    with torch.no_grad():
        assert torch.allclose(made(tokens)[0], exact(tokens)[0], atol=1e-3)
    (turns,) = made.transitions(tokens[:1])
    lasting = turns.eigvals().abs()[0][1:] if gate is None else turns.decay[0]
    assert (lasting > 1 - 1e-4).all()


@pytest.mark.parametrize("config", [MambaConfig, GLAConfig, DiagonalRNNConfig])
def test_gates_get_their_roles(config):
    """What is kept stays as it is bit for bit, what flips flips, what forgets forgets all."""
    torch.manual_seed(0)
    options = {} if config is DiagonalRNNConfig else {"conv_size": 0}
    mixer = config(allow_neg_eigval=True, **options)
    model = SequenceModel(ModelConfig(vocab_size=3, hidden_size=64, num_layers=1, mixer=mixer))
    with torch.no_grad():
        for name, p in model.blocks[0].mixer.named_parameters():
            if name.partition(".")[0] in ("x_proj", "dt_proj", "decay_proj", "W_A", "in_proj"):
                p.normal_(std=0.3)
    model.double()
    seen = Seen.of(model, BATCH)
    gates = diagonal.read_gates(model, seen)
    roles = assign(gates, seen.recurring, 0.3, 0.5, alike=config is MambaConfig)
    assert roles.keeps.any()
    assert roles.flips.any()
    assert roles.forgets.any()
    assert roles.fades.any()
    made = diagonal.write_gates(model, seen, roles, torch.zeros_like(roles.slow))
    after = diagonal.read_gates(made, seen)
    kept = roles.keeps[..., None].expand_as(after)
    assert (after[kept] == 1).all()
    assert (after[roles.flips] == -1).all()
    assert (after[roles.forgets].abs() < 1e-12).all()
    rest = ~kept & ~roles.flips & ~roles.forgets
    if config is MambaConfig:  # the others of a state that forgets: none that acts
        rest &= ~roles.forgets.any(0)
    assert torch.allclose(after[rest], gates[rest], atol=1e-12)
    dims = 2 if config is GLAConfig else 1  # the dimensions of a state that are channels
    with torch.no_grad():
        _, (first,) = made(torch.tensor([[1, 2, 2, 1, 2]]))
        for i, token in enumerate(seen.ids.tolist()):
            _, (then,) = made(torch.tensor([[token]]), (first,))
            channels = roles.keeps[i].view(first[0].shape[1 : 1 + dims])
            assert torch.allclose(then[0][0][channels], first[0][0][channels], atol=1e-12)
        every = torch.ones_like(roles.slow)
        silent = diagonal.write_gates(model, seen, roles, every)
        assert silent(torch.tensor([[1, 2, 2, 1]]))[1][0][0].abs().max() < 1e-12


def test_two_tokens_that_flip_a_channel_drift():
    gates = torch.tensor([[-0.99, -0.99, 1.0], [-0.98, 0.999, 0.2]]).double()[..., None]
    roles = assign(gates, torch.ones(2, dtype=torch.bool), 0.1, 0.0, alike=False)
    assert roles.drifts.tolist() == [True, False, False]
    assert roles.slow.tolist() == [True, False, False]
    assert roles.fades[..., 0].tolist() == [[False] * 3, [False, False, True]]
