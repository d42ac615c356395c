"""Time language models beside those of transformers.

    .venv-peers-hf/bin/python -m benchmarks language-models --out results/bench-language-models.md

Training: forward, backward, clipping and a fused AdamW step on random tokens. The share of sgemm is
6 x (weights of all products) x tokens over the time, relative to a product of 1,024 x 1,024
matrices. Generation: greedy, batch 1, the same weights on both sides, which must give the same
tokens. All candidates take turns in one process, and the least time of the rounds counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import statetrack
from benchmarks.processes import machine
from benchmarks.timing import SGEMM, WrongResultError, seconds, sgemm
from statetrack.files import check_output, write_atomic
from statetrack.kernels import library
from statetrack.lm import StateTrackConfig, StateTrackForCausalLM
from statetrack.lm.pretraining.presets import preset
from statetrack.models.convert import convert

VOCABULARY, BATCH, LENGTH = 4096, 4, 512
WIDTHS = (128, 256, 512)
PROMPT, GENERATED = 16, 64
NEAR, FAR = 100, 100_000  # positions at which a token is timed
SGEMM_GOALS = {"delta_net": 0.75, "mamba": 0.62}  # training: at least this share of sgemm
TRAINING_GOALS = {"delta_net": 1.8, "mamba": 5.5}  # at least so many times as fast as the other
GENERATION_GOAL = 3.0  # at least so many times as fast, at each width
POSITION_TOLERANCE = 0.05  # of the ratio of the times of tokens, which should be 1
GOAL = ("goal", "met")  # the last columns of every table
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}

Call = Callable[[], Any]


def ours(mixer: str) -> StateTrackForCausalLM:
    """The preset `small` with this mixer."""
    model = replace(preset("small", mixer).model, vocab_size=VOCABULARY)
    return StateTrackForCausalLM(StateTrackConfig(model))


def qwen3_next(width: int, layers: int) -> Any:
    """A Qwen3-Next of gated delta layers and dense MLPs, of the size of DeltaNet small."""
    config = transformers.Qwen3NextConfig(
        **TOKENS, hidden_size=width, num_hidden_layers=layers, intermediate_size=8 * width // 3,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, head_dim=32,
        linear_num_key_heads=width // 32, linear_num_value_heads=width // 32,
        linear_key_head_dim=32, linear_value_head_dim=32, tie_word_embeddings=False,
        layer_types=["linear_attention"] * layers, mlp_only_layers=list(range(layers)),
    )  # fmt: skip
    return transformers.Qwen3NextForCausalLM(config)


def hf_mamba(width: int, layers: int) -> Any:
    """A Mamba of transformers on the parallel scan of mambapy."""
    config = transformers.MambaConfig(
        **TOKENS, hidden_size=width, num_hidden_layers=layers, use_mambapy=True,
        tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.MambaForCausalLM(config)


def training_step(model: Any) -> Call:
    """Loss, gradients, clipping and optimiser step of a batch."""
    x = torch.randint(2, VOCABULARY, (BATCH, LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model.train()

    def call() -> None:
        optimizer.zero_grad()
        model(x, labels=x, use_cache=False).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return call


def weights_of_products(model: nn.Module) -> int:
    """Count the weights that multiply activations: of linear modules, the head among them."""
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))


def least_times(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Let the calls take turns; return the least seconds of each. The first turn does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            taken = seconds(call)
            if turn:
                times[name].append(taken)
    return {name: min(taken) for name, taken in times.items()}


def training_rows(rounds: int) -> list[list[str]]:
    """Compare training steps with transformers'."""
    rows = []
    for mixer, make in (("delta_net", qwen3_next), ("mamba", hf_mamba)):
        model = ours(mixer)
        shape = model.config.model_config
        peer = make(shape.hidden_size, shape.num_layers)
        models = {"ours": model, type(peer).__name__: peer}
        calls = {name: training_step(m) for name, m in models.items()}
        times = least_times({**calls, "sgemm": sgemm()}, rounds)
        rate = 2 * SGEMM**3 / times["sgemm"]
        for name, m in models.items():
            share = 6 * weights_of_products(m) * BATCH * LENGTH / times[name] / rate
            size = sum(p.numel() for p in m.parameters()) / 1e6
            speed = BATCH * LENGTH / times[name]
            cells = [f"{size:.1f}", f"{speed:,.0f}", f"{share:.0%}"]
            if name == "ours":
                least = SGEMM_GOALS[mixer]
                cells += ["", f"at least {least:.0%} of sgemm", _met(share >= least)]
            else:
                ratio, least = times[name] / times["ours"], TRAINING_GOALS[mixer]
                cells += [f"{ratio:.2f}x", f"at least {least:g}x", _met(ratio >= least)]
            rows.append([f"{shape.title}, training", name, *cells])
            print(" | ".join(rows[-1]), flush=True)
    return rows


def generation_rows(rounds: int) -> list[list[str]]:
    """Compare generation with transformers' Mamba, with the same weights."""
    rows = []
    for width in WIDTHS:
        peer = hf_mamba(width, 4).eval()
        model = StateTrackForCausalLM.from_sequence_model(
            convert(peer.config.to_dict(), peer.state_dict())
        ).eval()
        prompt = torch.randint(2, VOCABULARY, (1, PROMPT))
        calls = {name: _generate(m, prompt) for name, m in (("ours", model), ("theirs", peer))}
        if not torch.equal(calls["ours"](), calls["theirs"]()):
            raise WrongResultError(f"width {width}: the two models give different tokens")
        times = least_times(calls, rounds)
        speeds = {name: GENERATED / taken for name, taken in times.items()}
        ratio = times["theirs"] / times["ours"]
        goal = [f"at least {GENERATION_GOAL:g}x", _met(ratio >= GENERATION_GOAL)]
        cells = [*(f"{s:,.0f}" for s in speeds.values()), f"{ratio:.2f}x", *goal]
        rows.append([f"generation, width {width}", *cells])
        print(" | ".join(rows[-1]), flush=True)
    return rows


def _generate(model: Any, prompt: torch.Tensor) -> Call:
    options = {"max_new_tokens": GENERATED, "do_sample": False}
    return lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)


@torch.no_grad()
def position_ratio(mixer: str, rounds: int, steps: int = 200) -> float:
    """Return the time of a token at position FAR over that at position NEAR."""
    model = ours(mixer).eval().sequence_model
    decoder, token = model.decoder(1), torch.tensor([3])
    states = {}
    for position in (NEAR, FAR):
        state = None
        for start in range(0, position, 1000):
            length = min(1000, position - start)
            _, state = model(torch.randint(2, VOCABULARY, (1, length)), state)
        states[position] = state

    def decode(state: Any) -> None:
        for _ in range(steps):
            _, state = decoder.step(token, state)

    calls = {str(n): lambda state=state: decode(state) for n, state in states.items()}
    times = least_times(calls, rounds)
    return times[str(FAR)] / times[str(NEAR)]


def position_rows(rounds: int) -> list[list[str]]:
    """Compare tokens after many others with tokens after few."""
    rows = []
    for mixer in ("delta_net", "mamba"):
        ratio = position_ratio(mixer, rounds)
        goal = f"{1 - POSITION_TOLERANCE:g} to {1 + POSITION_TOLERANCE:g}"
        met = _met(abs(ratio - 1) <= POSITION_TOLERANCE)
        rows.append([f"{mixer}, positions", f"{ratio:.3f}", goal, met])
        print(" | ".join(rows[-1]), flush=True)
    return rows


def _met(reached: bool) -> str:
    return "yes" if reached else "no"


def verdict(rows: list[list[str]]) -> str:
    """Say how many goals are met, and name the others; the last cells of a row are goal and met."""
    missed = []
    for what, *cells, goal, met in rows:
        if met == "no":
            found = next(cell for cell in reversed(cells) if cell)
            missed.append(f"{what} ({found}; goal: {goal})")
    others = f"; not met: {', '.join(missed)}" if missed else ""
    return f"{len(rows) - len(missed)} of {len(rows)} goals are met{others}."


def markdown(
    training: list[list[str]],
    generation: list[list[str]],
    positions: list[list[str]],
    command: str,
) -> str:
    """The verdict and the tables, with all that is needed to read them."""
    about = machine()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    lines = [
        f"# Language models beside transformers', measured by `{command}`",
        "",
        verdict([*training, *generation, *positions]),
        "",
        f"{about['processor']}, {about['cores']} cores; native kernels: {library.level()}; "
        f"{versions}. {torch.get_num_threads()} threads, float32.",
        "",
        f"Training: batch {BATCH}, {LENGTH} tokens, {VOCABULARY:,} tokens in the vocabulary; "
        "forward, backward, clipping and fused AdamW. The share of sgemm counts 6 operations per "
        "token and weight of a product. A ratio is their time over ours.",
        "",
        *_table(
            ["work", "model", "million parameters", "tokens/s", "of sgemm", "ratio", *GOAL],
            training,
        ),
        "",
        f"Generation, batch 1: {GENERATED} greedy tokens after {PROMPT}, Mamba of 4 layers with "
        "the same weights on both sides, which give the same tokens.",
        "",
        *_table(["model", "our tokens/s", "transformers' tokens/s", "ratio", *GOAL], generation),
        "",
        f"Time of a token at position {FAR:,} over that at position {NEAR}:",
        "",
        *_table(["model", "ratio", *GOAL], positions),
        "",
    ]
    return "\n".join(lines)


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", *lines]


def main(*, threads: int = 2, rounds: int = 7, out: Path | None = None) -> None:
    """Measure, print, and write a page if `out` is given."""
    if out is not None:
        check_output(out)
    transformers.logging.set_verbosity_error()
    statetrack.tune_allocator()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    training = training_rows(rounds)
    generation = generation_rows(rounds)
    positions = position_rows(rounds)
    print(verdict([*training, *generation, *positions]))
    if out is not None:
        command = " ".join(["python -m benchmarks", *sys.argv[1:]])
        write_atomic(out, markdown(training, generation, positions, command))
