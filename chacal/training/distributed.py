"""One process or many, the same to the loop: torchrun's ranks, DDP or FSDP2, sums over all.

Every rank makes the whole batch (a pure function of the step) and takes its own rows, so a run
with two processes sees what a run with one sees. With `context` processes to a text, so many ranks
in a row take the same rows, and of these each its own part (chacal/parallel).
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from chacal.parallel import Part, context_parallel
from chacal.tasks.base import Totals
from chacal.training.checkpoint import pack_optimizer, unpack_optimizer
from chacal.training.pulse import Pulse
from chacal.training.torchrun import local_rank, rank, under_torchrun, world_size


class LostProcess(ConnectionError):
    """Another process of this run has ended, and a step without it cannot be taken.

    Attributes:
        speaks: whether this process is the one that tells of it.
    """

    speaks = True


class Whole:
    """A text that is not shared, in the place of `chacal.parallel.Part`."""

    def take(self, x: Tensor) -> Tensor:
        """All of it."""
        return x

    def join(self, x: Tensor) -> Tensor:
        """All of it."""
        return x


LOST = ("connection", "gloo", "nccl", "socket", "broken pipe", "timed out", "peer")
"""Words of the backends' errors about a process that does not answer; they have no type."""


@dataclass(frozen=True)
class Group:
    """The processes of a run."""

    rank: int
    world: int
    device: torch.device
    fsdp: bool = False
    context: int = 1
    """Processes that share each text."""
    shared: dist.ProcessGroup | None = None
    """Those that share ours."""

    @property
    def data_rank(self) -> int:
        """Which of the rows of a batch are ours, and of all others that share them."""
        return self.rank // self.context

    @property
    def data_world(self) -> int:
        """In how many parts the rows of a batch are dealt out."""
        return -(-self.world // self.context)

    @property
    def counts(self) -> bool:
        """Whether this process counts what all know that share its texts."""
        return self.rank % self.context == 0

    def share(self, length: int) -> AbstractContextManager[Part | Whole]:
        """Where a model stands on this process's part of texts of that length."""
        if self.context == 1:
            return nullcontext(Whole())
        return context_parallel(self.shared, length)

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as the loop calls it."""
        if self.fsdp:
            from torch.distributed.fsdp import fully_shard

            mesh = dist.init_device_mesh(self.device.type, (self.world,))
            for layer in model.children():
                if isinstance(layer, nn.ModuleList):
                    for part in layer:
                        fully_shard(part, mesh=mesh)
            fully_shard(model, mesh=mesh)  # in place
            # the scores are a view, and nothing here writes into them
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            return model
        if self.world > 1:
            return nn.parallel.DistributedDataParallel(model)
        return model

    def sync(self, model: nn.Module, now: bool) -> AbstractContextManager[object]:
        """Whether the gradients of a backward pass are exchanged at once."""
        if isinstance(model, nn.parallel.DistributedDataParallel) and not now:
            return model.no_sync()
        return nullcontext()

    def add(self, totals: Totals) -> Totals:
        """Metric sums over all ranks."""
        if self.world == 1:
            return totals
        gathered: list[Totals | None] = [None] * self.world
        dist.all_gather_object(gathered, totals)
        out: Totals = {}
        for part in gathered:
            for name, (total, count) in (part or {}).items():
                before = out.get(name, (0.0, 0.0))
                out[name] = (before[0] + total, before[1] + count)
        return out

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        if self.world == 1:
            return flag
        flags = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(flags)
        return bool(flags.item())

    def total(self, value: Tensor) -> float:
        """A number summed over all ranks."""
        value = value.detach().double() if self.device.type == "cpu" else value.detach().float()
        if self.world > 1:
            dist.all_reduce(value)
        return float(value)

    def gather(self, value: Tensor) -> list[Tensor]:
        """A tensor on the CPU from every rank."""
        if self.world == 1:
            return [value]
        everyone = [torch.empty_like(value) for _ in range(self.world)]
        dist.all_gather(everyone, value)
        return everyone

    def barrier(self) -> None:
        """Wait for all."""
        if self.world > 1:
            dist.barrier()

    def model_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The whole weights, by their names in the plain model."""
        import torch.distributed.checkpoint.state_dict as sharded  # takes a second

        if self.fsdp:
            whole = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
            # its values may be of other kinds in general; a model's are tensors
            return sharded.get_model_state_dict(model, options=whole)  # type: ignore[return-value]
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        return model.state_dict()

    def optimizer_tensors(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, names: list[str]
    ) -> dict[str, Tensor]:
        """The whole optimiser state as named tensors."""
        import torch.distributed.checkpoint.state_dict as sharded  # takes a second

        if not self.fsdp:
            return pack_optimizer(optimizer, names)
        whole = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
        # with offloading, only the first rank is given the whole
        state: Any = sharded.get_optimizer_state_dict(model, optimizer, options=whole).get(
            "state", {}
        )
        return {
            f"optimizer.{name}.{key}": torch.as_tensor(value)
            for name, values in state.items()
            for key, value in values.items()
        }

    def restore_optimizer(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        names: list[str],
        tensors: dict[str, Tensor],
    ) -> None:
        """Put back what `optimizer_tensors` took."""
        import torch.distributed.checkpoint.state_dict as sharded  # takes a second

        if not self.fsdp:
            unpack_optimizer(optimizer, names, tensors)
            return
        whole = sharded.StateDictOptions(full_state_dict=True)
        own = sharded.get_optimizer_state_dict(model, optimizer, options=whole)
        state: dict[str, Any] = {}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition(".")
            state.setdefault(parameter, {})[key] = tensor
        sharded.set_optimizer_state_dict(
            model, optimizer, {"state": state, "param_groups": own["param_groups"]}, options=whole
        )


def chosen_device(device: str) -> torch.device:
    """Where "auto", "cpu" or "cuda" is, to this process."""
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ValueError("device is 'cuda' and torch sees none; expected 'cpu' or 'auto' here")
    return torch.device("cuda", local_rank()) if cuda and device != "cpu" else torch.device("cpu")


@contextmanager
def start(device: str, fsdp: bool, context: int = 1) -> Iterator[Group]:
    """Join torchrun's processes, if it started us; leave them at the end.

    Where they are joined already, by a caller that trains several runs, they are left so: a
    process group that is made a second time in the same processes hangs.
    """
    where = chosen_device(device)
    if fsdp and not under_torchrun():
        raise ValueError("fsdp needs processes to shard over; start it with torchrun")
    if world_size() % context:
        raise ValueError(
            f"context_parallel is {context}; expected a divisor of the {world_size()} processes "
            f"that torchrun starts (--nproc-per-node)"
        )
    if not under_torchrun():
        yield Group(0, 1, where)
        return
    if dist.is_initialized():
        with _telling_of_the_lost(None):
            yield _joined(where, fsdp, context)
        return
    if where.type == "cuda":
        torch.cuda.set_device(where)
    store = next(dist.rendezvous("env://"))[0]
    store.set_timeout(SLOWEST)
    pulse = Pulse(dist.PrefixStore("pulse", store.clone()), rank(), world_size())
    try:
        with _telling_of_the_lost(pulse):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo",
                store=dist.PrefixStore("run", store), rank=rank(), world_size=world_size(),
            )  # fmt: skip
            yield _joined(where, fsdp, context)
    finally:
        pulse.stop()
        if dist.is_initialized():
            dist.destroy_process_group()


SLOWEST = timedelta(minutes=30)
"""How long the first process to be there waits for the last."""


def _joined(where: torch.device, fsdp: bool, context: int) -> Group:
    shared = None
    if context > 1:
        # neighbours share a text: they are most likely on one machine
        mesh = dist.init_device_mesh(
            where.type, (world_size() // context, context), mesh_dim_names=("data", "context")
        )
        shared = mesh["context"].get_group()
    return Group(rank(), world_size(), where, fsdp, context, shared)


@contextmanager
def _telling_of_the_lost(pulse: Pulse | None) -> Iterator[None]:
    """A backend's error about a process that is gone, in one line that says which, said once."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(word in text.lower() for word in LOST):
            raise
        if threading.current_thread() is threading.main_thread():
            # torchrun asks the others to end as soon as one has; they do, when they have told why
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gone = [] if pulse is None else pulse.lost()
        names = ", ".join(f"rank {rank}" for rank in gone) or "another process"
        lost = LostProcess(
            f"{names} of this run ended: {text.splitlines()[0]}; the last checkpoint is kept, and "
            f"--resume goes on from it"
        )
        lost.speaks = pulse is None or pulse.speaks(gone)
        raise lost from None
