"""`python -m benchmarks gpu-kernels`: compile the Triton kernels for GPUs that are not here."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statetrack.errors import UserError
from statetrack.files import check_output, write_atomic
from statetrack.kernels import gpu
from statetrack.terminal import PlainConsole, check_json, make_console, write_result

if TYPE_CHECKING:
    from benchmarks.gpu_kernels.peers import Peer
    from statetrack.kernels.gpu import KernelExample


def main(*, peers: bool = True, out: Path | None = None, json: str | None = None) -> int:
    """Compile every Triton kernel for sm80, sm90, sm100 and gfx942, and estimate its time.

    Needs Triton and flash-linear-attention, which `make peers` installs, but no GPU: run it with
    the Python of .venv-peers-fla. Nothing is run and no time is measured. The exit code is 1 if a
    kernel takes more shared memory than its target has.

    Args:
        peers: whether to compile flash-linear-attention's kernels of the same work, too.
        out: a markdown file.
    """
    check_json(json)
    if out is not None:
        check_output(out)
    if gpu.missing("fla"):
        raise UserError(
            "gpu-kernels needs Triton and flash-linear-attention: run `make peers`, then "
            ".venv-peers-fla/bin/python -m benchmarks gpu-kernels"
        )
    if gpu.interpreting():
        raise UserError("gpu-kernels compiles: unset TRITON_INTERPRET")
    from benchmarks.gpu_kernels import report
    from benchmarks.gpu_kernels.compiled import examples
    from benchmarks.gpu_kernels.peers import recorded_peers

    console = make_console(json)
    result = measure(examples(), recorded_peers() if peers else [], console)
    report.show(result, console)
    if out is not None:
        write_atomic(out, report.markdown(result))
    write_result(json, result)
    for line in result["failures"]:
        console.print(line)
    return 1 if result["failures"] else 0


def measure(ours: list[KernelExample], theirs: list[Peer], console: PlainConsole) -> dict[str, Any]:
    """Compile all kernels for all targets; return plain values."""
    from benchmarks.gpu_kernels.compiled import (
        TARGETS,
        compile_example,
        compile_kernel,
        fresh_cache,
        instructions,
        resources,
        too_much_shared,
    )
    from benchmarks.gpu_kernels.roofline import GPUS, estimate

    kernels, others, failures = [], [], []
    with console.status("compiling") as status, fresh_cache():
        for n, example in enumerate(ours, 1):
            status.update(f"{n} of {len(ours)}: {example.name}")
            found, estimates = {}, {}
            for target in TARGETS.values():
                compiled = compile_example(example, target)
                taken = resources(compiled, target)
                found[target.name] = {**vars(taken), "instructions": instructions(compiled, target)}
                if problem := too_much_shared(taken, target):
                    failures.append(f"{example.name} takes {problem}")
                for card in GPUS.values():
                    if card.target == target.name:
                        estimates[card.name] = vars(estimate(example, taken, card))
            facts = {"name": example.name, "size": example.size, "num_warps": example.num_warps}
            work = {"flops": example.flops, "bytes": example.bytes, "programs": example.programs}
            kernels.append({**facts, **work, "targets": found, "estimates": estimates})
        for n, peer in enumerate(theirs, 1):
            status.update(f"fla {n} of {len(theirs)}: {peer.name}")
            found, launch = {}, peer.example
            chosen = launch.kernel, launch.arguments
            for target in TARGETS.values():
                compiled = compile_kernel(*chosen, target, launch.num_warps, peer.num_stages)
                taken = resources(compiled, target)
                found[target.name] = {**vars(taken), "instructions": instructions(compiled, target)}
            facts = {"name": peer.name, "work": peer.work, "size": launch.size}
            others.append({**facts, "num_warps": launch.num_warps, "targets": found})
    return {
        "versions": {name: version(name) for name in ("statetrack", "triton", "fla-core")},
        "shared": {target.name: target.shared for target in TARGETS.values()},
        "kernels": kernels,
        "fla": others,
        "failures": failures,
    }
