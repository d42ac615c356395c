"""Run a benchmark: `python -m benchmarks NAME [options]`.

They need a checkout: some compare with other packages, which `make peers` installs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from statetrack.cli.main import exit_code
from statetrack.cli.parser import Parser
from statetrack.config import unknown

BENCHMARKS = {
    "tasks": ("benchmarks.tasks", "how fast sequences are drawn and solved"),
    "ops": ("benchmarks.ops.driver", "the recurrences beside those of other packages"),
    "layers": ("benchmarks.layers.driver", "training and decoding of layers, beside others"),
    "hf": ("benchmarks.hf_kernels", "models of transformers on our kernels"),
    "language-models": ("benchmarks.language_models", "training and generation, beside others"),
    "gpu-kernels": ("benchmarks.gpu_kernels.driver", "the Triton kernels, compiled without a GPU"),
    "tokenising": ("benchmarks.tokenising", "text to data folders, beside `tokenizers` alone"),
    "theory": ("benchmarks.theory", "exactness, horizons and speed of compiled networks"),
    "harden": ("benchmarks.harden", "how often hardening makes a trained model exact"),
    "horizons": ("benchmarks.horizons", "predicted beside measured horizons"),
    "walks": ("benchmarks.walks", "the files that a command crosses, function by function"),
    "demo-choose": ("benchmarks.demo_presets:choose", "candidates for the demo's models"),
    "demo-confirm": ("benchmarks.demo_presets:confirm", "the demo with many seeds"),
    "lm-memory": ("benchmarks.lm_memory", "peak memory of perplexity at a short and a long length"),
    "chunked-backward": (
        "benchmarks.chunked_backward",
        "memory and time of back-propagation over chunks",
    ),
    "kills": ("benchmarks.reliability.kills", "runs that are killed and resumed"),
    "folders": ("benchmarks.reliability.folders", "run folders under attack"),
    "numerics": ("benchmarks.reliability.numerics", "native kernels at extreme inputs"),
    "fuzz": ("benchmarks.reliability.fuzz", "bad inputs of every kind (`make fuzz`)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; returns the exit code, 2 for a mistake in the input."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code("benchmarks", lambda: _run(words))


def _run(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        lines = [f"  {name:17}{about}" for name, (_, about) in BENCHMARKS.items()]
        print("\n".join(["usage: python -m benchmarks NAME [options]", "", *lines]))
        return 0
    if words[0] not in BENCHMARKS:
        raise unknown("benchmark", words[0], BENCHMARKS)
    module, _, name = BENCHMARKS[words[0]][0].partition(":")
    function = getattr(importlib.import_module(module), name or "main")
    return function(**Parser(f"python -m benchmarks {words[0]}", function).parse(words[1:])) or 0


if __name__ == "__main__":
    sys.exit(main())
