"""The processes of a run: one, or several that share each batch (DDP or FSDP2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from statetrack.devices import prefer_gpu, use_device
from statetrack.errors import UserError
from statetrack.models import SequenceModel


class Processes:
    """This process among those that torchrun or `accelerate launch` started.

    Attributes:
        rank: the number of this process.
        count: how many there are.
        device: what this process computes on.
        main: whether this process writes the files.
        sharded: whether weights and optimiser are split among the processes.
    """

    def __init__(self, shard: bool = False, device: str = "auto") -> None:
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started > 1 and ":" in device:
            raise UserError(f"{started} processes have a GPU each: give cuda, not {device}")
        if started > 1:
            prefer_gpu(int(os.environ.get("LOCAL_RANK", "0")))
        self.device = use_device(device)
        # on a CPU accelerate starts no group of processes unless it is told to use the CPU; the
        # precision and accumulation of `accelerate config` must not replace those of the run
        self.accelerator = Accelerator(
            cpu=self.device.type == "cpu", mixed_precision="no", device_placement=False
        )
        if started > 1:
            self.device = self.accelerator.device
        self.rank, self.count = self.accelerator.process_index, self.accelerator.num_processes
        self.main = self.rank == 0
        self.sharded = shard
        if self.count != started:
            raise UserError(f"{started} processes were started, but accelerate found {self.count}")
        kind = self.accelerator.distributed_type
        if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            raise UserError(
                f"accelerate is set to {kind.value}: start plain processes, with --shard"
            )
        if shard and not torch.distributed.is_initialized():
            line = "torchrun --nproc-per-node N -m statetrack lm train ..."
            raise UserError(f"shard splits the weights among processes; start several: {line}")

    def place(self, model: SequenceModel) -> None:
        """Move a model to the device and, if sharded, split its weights, block by block."""
        model.to(self.device)
        if self.sharded:
            mesh = init_device_mesh(self.device.type, (self.count,))
            for block in model.stack():
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)

    def wrap(self, model: SequenceModel) -> nn.Module:
        """Return a module that computes the same and averages its gradients over processes (DDP).

        A sharded model averages them itself and is returned as it is.
        """
        return model if self.sharded else self.accelerator.prepare_model(model)

    @contextmanager
    def gradients(self, wrapped: nn.Module, *, average: bool) -> Iterator[None]:
        """Run the backward passes inside, and with `average` average gradients over processes.

        Without `average` each process accumulates its own gradients.
        """
        if isinstance(wrapped, FSDPModule):
            wrapped.set_requires_gradient_sync(average)
        if average or self.sharded:
            yield
        else:
            with self.accelerator.no_sync(wrapped):
                yield

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a number over all processes; it stays on the device."""
        mean: Tensor = self.accelerator.reduce(value.detach().float(), "mean")
        return mean

    def agreed(self, value: int) -> int:
        """Return the number of the first process in all processes."""
        return int(broadcast(torch.tensor([value], device=self.device)))

    def wait(self) -> None:
        """Wait for all processes."""
        self.accelerator.wait_for_everyone()


def whole(tensor: Tensor) -> Tensor:
    """Return a whole tensor on the CPU; if it is sharded, all processes must call this."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu()


def end_processes() -> None:
    """Leave the group of processes, if there is one, before this process ends."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
