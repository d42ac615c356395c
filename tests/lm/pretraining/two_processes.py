"""Runs of two processes with gloo, undisturbed and killed, for test_processes.py.

Usage: python -m tests.lm.pretraining.two_processes DATA OUT. For DDP and FSDP2 it trains OUT/KIND
undisturbed, and OUT/KIND-killed, whose second process kills itself after a checkpoint; then both
processes start again. OUT/KIND-one was killed likewise, but one process goes on with it.
OUT/KIND-chunked back-propagates over chunks. Processes are forked, which saves the time of imports.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.reliability.pretraining import small_config
from benchmarks.reliability.processes import end, prepare, start
from statetrack.lm.pretraining import loop
from statetrack.lm.pretraining.distributed import end_processes


def together(work: Callable[[], None], count: int = 2) -> list[int]:
    """Do work in forked processes, as torchrun would start them; their exit codes."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]

    def one(rank: int) -> None:
        given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        given |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in given.items()}
        work()
        end_processes()

    children = [start(lambda rank=rank: one(rank)) for rank in range(count)]  # type: ignore[misc]
    return [end(child) for child in children]


def kill_the_second_process(at: int) -> None:
    """Let process 1 kill itself before a step."""
    plain = loop._Loop.step

    def step(self: loop._Loop, step: int) -> tuple[float, float]:
        if (step, self.processes.rank) == (at, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, step)

    loop._Loop.step = step  # type: ignore[method-assign]


def main(data: Path, out: Path) -> None:
    prepare()
    for kind in ("ddp", "fsdp"):
        config = small_config(data, micro_batch_size=1, shard=kind == "fsdp")

        def train(name: str, config: loop.PretrainingConfig = config) -> None:
            loop.pretrain(config, out / name)

        def killed(name: str) -> None:
            kill_the_second_process(at=6)
            train(name)

        def chunked(name: str, config: loop.PretrainingConfig = config) -> None:
            loop.pretrain(replace(config, backward_chunk=5), out / name)

        assert together(lambda: train(kind)) == [0, 0]  # noqa: B023
        assert together(lambda: chunked(f"{kind}-chunked")) == [0, 0]  # noqa: B023
        codes = together(lambda: killed(f"{kind}-killed"))  # noqa: B023
        assert codes[0] != 0
        assert codes[1] == -signal.SIGKILL
        shutil.copytree(out / f"{kind}-killed", out / f"{kind}-one")
        assert together(lambda: train(f"{kind}-one"), count=1) == [0]  # noqa: B023
        assert together(lambda: train(f"{kind}-killed")) == [0, 0]  # noqa: B023


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
