"""A text over real processes, with gloo: as on one, and longer than the memory of one."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import chacal
from chacal.parallel import sharded_attention

ROOT = Path(__file__).parent.parent.parent

OPERATORS = ["chacal", "chacal,diagonal=drop", "window@33", "routed@16,routes=2", "routed", "dense"]


def start(rank, size, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)


def inputs(n, heads=6, d=16):
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, heads, n, d, generator=generator) for _ in range(4)]


def one_rank(rank, size, port, queue):
    from torch.distributed.tensor import DTensor, Shard

    start(rank, size, port)
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("context",))
    n = 203
    found = {}
    for operator in OPERATORS:
        # in float64, which rounds so little that a choice of tiles or a lost digit would be seen
        parts = [x.double().tensor_split(size, -2)[rank].clone() for x in inputs(n)]
        leaves = [x.requires_grad_() for x in parts[:3]]
        gamma = None if operator == "dense" else torch.full((6,), 0.9).double().requires_grad_()
        Y = sharded_attention(operator, *leaves, group=mesh["context"], gamma=gamma)
        Y.backward(parts[3])
        found[operator] = [Y.detach().numpy(), *(x.grad.numpy() for x in leaves)]
        found[operator].append(None if gamma is None else gamma.grad.numpy())
    # DTensor's own rule of lengths: ceil(n / size) each, the last one fewer
    own = [x.chunk(size, -2)[rank] for x in inputs(n)[:3]]
    shape, stride = inputs(n)[0].shape, inputs(n)[0].stride()
    whole = [DTensor.from_local(x, mesh, [Shard(2)], shape=shape, stride=stride) for x in own]
    Y = sharded_attention("chacal", *whole)
    assert isinstance(Y, DTensor)
    assert Y.shape == shape
    found["DTensor"] = [Y.full_tensor().numpy()]
    queue.put((rank, found))
    queue.join()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_processes_agree_with_one(size, free_port):
    context = mp.get_context("spawn")
    queue = context.JoinableQueue()
    ranks = [
        context.Process(target=one_rank, args=(rank, size, free_port, queue), daemon=True)
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    told = {}
    for _ in ranks:
        rank, found = queue.get(timeout=240)
        told[rank] = found
    for _ in ranks:
        queue.task_done()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    for operator in OPERATORS:
        *qkv, dY = (x.double() for x in inputs(203))
        leaves = [x.requires_grad_() for x in qkv]
        gamma = None if operator == "dense" else torch.full((6,), 0.9).double().requires_grad_()
        Y = chacal.parse_operator(operator)(*leaves, gamma=gamma)
        Y.backward(dY)
        alone = [Y.detach(), *(x.grad for x in leaves)]
        for i, wanted in enumerate(alone):
            made = torch.cat([torch.from_numpy(told[rank][operator][i]) for rank in range(size)], 2)
            assert (made - wanted).abs().max() < 1e-10 * wanted.abs().max(), (operator, i)
        if gamma is not None:
            made = sum(torch.from_numpy(told[rank][operator][4]) for rank in range(size))
            assert (made - gamma.grad).abs().max() < 1e-10 * gamma.grad.abs().max(), operator
    Y = chacal.resolvent_attention(*inputs(203)[:3])
    for found in told.values():
        assert (torch.from_numpy(found["DTensor"][0]) - Y).abs().max() < 1e-5


LONG, HEADS, WIDTH = 32768, 8, 64


def draw(first, last):
    """Rows first to last of q, k, v and dY: each position by its own seed, so that nobody needs to
    make the whole."""
    made = []
    for which in range(4):
        blocks = []
        for block in range(first // 1024, last // 1024):
            generator = torch.Generator().manual_seed(1000 * which + block)
            blocks.append(torch.randn(1, HEADS, 1024, WIDTH, generator=generator))
        made.append(torch.cat(blocks, 2))
    return made


def limited(spare):
    """From now on this process may hold `spare` more bytes of data than it does."""
    held = next(
        1024 * int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (held + spare, resource.RLIM_INFINITY))


def long_text(rank, size, port, out, spare):
    """Y and the gradients of this rank's part, under the limit; the files tell."""
    start(rank, size, port)
    # what backends and kernels keep for themselves is made before the limit
    small = [torch.ones(1, 1, 64, WIDTH).requires_grad_() for _ in range(3)]
    sharded_attention("window@64,gamma=0.9", *small).backward(torch.ones(1, 1, 64, WIDTH))
    if spare:
        limited(spare)
    try:
        each = LONG // size
        *qkv, dY = draw(rank * each, (rank + 1) * each)
        leaves = [x.requires_grad_() for x in qkv]
        Y = sharded_attention("window@64,gamma=0.9", *leaves)
        Y.backward(dY)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        print("memory ran out", flush=True)
        os._exit(3)
    made = {"Y": Y.detach(), **dict(zip(("dq", "dk", "dv"), (x.grad for x in leaves), strict=True))}
    for name, x in made.items():
        x.numpy().tofile(f"{out}/{name}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


def launch(size, port, out, spare):
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    code = f"{here}; import test_context_processes as t; t.long_text"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", f"{code}({rank}, {size}, {port}, {str(out)!r}, {spare})"],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    said = [rank.communicate(timeout=240)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], said


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is read from /proc")
def test_four_processes_hold_what_the_memory_of_one_does_not(tmp_path, free_port):
    # q, k, v, Y, dY, dq, dk and dv of the text are 8 x 64 MiB; with the work besides one process
    # holds 550 MiB and more, each of four 220
    size, limit = 4, 400 * 2**20
    for name in ("alone", "free", "four"):
        (tmp_path / name).mkdir()
    codes, said = launch(1, free_port, tmp_path / "alone", limit)
    assert codes == [3], said
    assert said == ["memory ran out\n"]
    codes, said = launch(1, free_port, tmp_path / "free", 0)
    assert codes == [0], said
    codes, said = launch(size, free_port, tmp_path / "four", limit)
    assert codes == [0] * size, said
    for name in ("Y", "dq", "dk", "dv"):
        shape = (1, HEADS, LONG, WIDTH)
        alone = torch.from_file(
            str(tmp_path / "free" / f"{name}.0"), size=torch.Size(shape).numel()
        ).view(shape)
        part = (1, HEADS, LONG // size, WIDTH)
        parts = [
            torch.from_file(
                str(tmp_path / "four" / f"{name}.{rank}"), size=torch.Size(part).numel()
            ).view(part)
            for rank in range(size)
        ]
        # on one process a compiled library computes, which rounds otherwise
        far = (torch.cat(parts, 2) - alone).abs().max()
        assert far < 1e-5 * max(1, alone.abs().max()), name
