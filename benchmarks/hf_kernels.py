"""Time models of transformers with and without `use_native_kernels`.

    .venv-peers-hf/bin/python -m benchmarks hf --threads 1 --out results/hf-kernels.md

Results are compared first. Then both variants take turns in one process; the shortest time of all
rounds is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

import statetrack
from benchmarks.processes import machine
from benchmarks.timing import seconds
from statetrack.files import check_output, write_atomic
from statetrack.integrations.hf import use_native_kernels
from statetrack.kernels import library

VOCABULARY, WIDTH, LAYERS = 512, 256, 4
PROMPT = 16


def models() -> dict[str, Callable[[], Any]]:
    """Small models with the proportions of the released ones, by name."""
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": None}
    size = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    mamba = transformers.MambaConfig(**tokens, **size)
    mamba2 = transformers.Mamba2Config(
        **tokens, **size, num_heads=8, head_dim=64, n_groups=1, state_size=64, chunk_size=64
    )
    hybrid = transformers.OlmoHybridConfig(
        **tokens, **size, num_attention_heads=4, intermediate_size=768
    )
    qwen = transformers.Qwen3NextConfig(
        **tokens, **size, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64,
        linear_value_head_dim=64, num_experts=16, num_experts_per_tok=2, moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )  # fmt: skip
    return {
        "Mamba": lambda: transformers.MambaForCausalLM(mamba),
        "Mamba2": lambda: transformers.Mamba2ForCausalLM(mamba2),
        "OLMo-Hybrid": lambda: transformers.OlmoHybridForCausalLM(hybrid),
        "Qwen3-Next": lambda: transformers.Qwen3NextForCausalLM(qwen),
    }


def training_step(model: Any, batch: int, length: int) -> Callable[[], Tensor]:
    """Loss and gradients of a batch."""
    x = torch.randint(1, VOCABULARY, (batch, length))

    def call() -> Tensor:
        model.train()
        model.zero_grad()
        loss = model(x, labels=x, use_cache=False).loss
        loss.backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat([loss.detach()[None], *grads])

    return call


def decode(model: Any, batch: int, count: int) -> Callable[[], Tensor]:
    """Greedy tokens after a short prompt."""
    x = torch.randint(1, VOCABULARY, (batch, PROMPT))

    def call() -> Tensor:
        model.eval()
        return model.generate(
            x, attention_mask=torch.ones_like(x), max_new_tokens=count, do_sample=False
        ).float()

    return call


def measure(model: Any, call: Callable[[], Tensor], rounds: int) -> tuple[float, float]:
    """The least seconds before and after."""
    before = call()
    with use_native_kernels(model):
        after = call()
    distance = float((after - before).norm() / before.norm())
    if not distance <= 1e-4:
        raise SystemExit(f"{type(model).__name__} is not timed: off by {distance:.1e}")
    least = [float("inf"), float("inf")]
    for _ in range(rounds):
        for native_kernels in (0, 1):
            with use_native_kernels(model) if native_kernels else nullcontext():
                least[native_kernels] = min(least[native_kernels], seconds(call))
    return least[0], least[1]


def markdown(rows: Sequence[Sequence[str]], command: str) -> str:
    """The table with all that is needed to read it."""
    about = machine()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    columns = ["model", "what", "transformers ms", "native ms", "ratio"]
    return "\n".join(
        [
            f"# Models of transformers on native kernels, measured by `{command}`",
            "",
            f"{about['processor']}, {about['cores']} cores; native kernels: {library.level()}; "
            f"{versions}.",
            "",
            f"Models of {LAYERS} layers, width {WIDTH}, {VOCABULARY} tokens, float32. Results were "
            "compared first (loss and all gradients to 1e-4, the same tokens); then both took "
            "turns in one process, and the least time of the rounds counts. A training step is "
            f"loss and gradients, without the optimiser; decoding begins with {PROMPT} tokens.",
            "",
            f"| {' | '.join(columns)} |",
            f"|{' --- |' * len(columns)}",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
        ]
    )


def main(
    *,
    only: tuple[Literal["Mamba", "Mamba2", "OLMo-Hybrid", "Qwen3-Next"], ...] = (
        "Mamba",
        "Mamba2",
        "OLMo-Hybrid",
        "Qwen3-Next",
    ),
    threads: int = 1,
    rounds: int = 5,
    out: Path | None = None,
) -> None:
    """Measure, print, and write a page if `out` is given."""
    if out is not None:
        check_output(out)
    transformers.logging.set_verbosity_error()
    statetrack.tune_allocator()
    torch.set_num_threads(threads)
    rows = []
    for name in only:
        torch.manual_seed(0)
        model = models()[name]()
        jobs = {
            "training step, B8 T128": training_step(model, 8, 128),
            "training step, B1 T512": training_step(model, 1, 512),
            "decode 64 tokens, B1": decode(model, 1, 64),
            "decode 64 tokens, B16": decode(model, 16, 64),
        }
        for what, call in jobs.items():
            before, after = measure(model, call, rounds)
            times = [f"{1e3 * before:.1f}", f"{1e3 * after:.1f}", f"{before / after:.2f}x"]
            rows.append([name, what, *times])
            print(" | ".join(rows[-1]), flush=True)
    if out is not None:
        command = " ".join(["python -m benchmarks", *sys.argv[1:]])
        write_atomic(out, markdown(rows, command))
