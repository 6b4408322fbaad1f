"""DTensors in, a DTensor out: their mesh is the group, their local parts are the ranks' tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor


def is_dtensor(x: object) -> bool:
    """Whether x is one; who has any has loaded the module, which takes a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def attend_dtensors(attend: Callable[..., Tensor], q: Any, k: Any, v: Any, group: object) -> Tensor:
    """attend(q, k, v, group=mesh) on the local parts of what is sharded along n."""
    from torch.distributed.tensor import DTensor, Shard

    wanted = (Shard(q.ndim - 2),)
    for name, x in (("q", q), ("k", k), ("v", v)):
        placed = x.placements if is_dtensor(x) else None
        if placed != wanted or x.device_mesh != q.device_mesh:
            raise ValueError(
                f"{name} has placements {placed}; expected a DTensor on q's mesh, of one "
                f"dimension, with {wanted}"
            )
    if group is not None:
        raise ValueError("group was given with DTensors; expected their mesh to be the group")
    Y = attend(*(x.to_local() for x in (q, k, v)), group=q.device_mesh)
    return DTensor.from_local(Y, q.device_mesh, wanted, shape=v.shape, stride=v.stride())
