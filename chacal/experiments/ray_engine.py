"""The cells of a sweep on a Ray cluster, whose nodes share the folder of the results.

A task does on its node what the local engine does in a thread: it starts the job's process and
waits for it (`apart.py`). A node that dies takes its tasks with it; Ray starts them on another, and
they go on from the checkpoints in the folder. That a cell runs once, whoever else is at it, is the
lock of its folder (`training/lock.py`). If this process dies, Ray kills its tasks and their jobs,
and the same command goes on from the checkpoints.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chacal._echo import one_line, shown
from chacal._extras import install
from chacal._version import __version__
from chacal.experiments.apart import GRACE, Asked, perform_apart
from chacal.experiments.engines import STOPPING, terminable
from chacal.experiments.job import Job, describe_error, failure_file, record_failure
from chacal.experiments.progress import Progress
from chacal.training.lock import LOCK
from chacal.training.runs import Interrupted
from chacal.training.torchrun import under_torchrun

RETRIES = 10
"""Nodes that a cell may lose before it counts as failed: it may be what kills them."""

LOOK = 0.5
"""Seconds between two looks at what runs."""


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """A cluster; each cell takes its share of one node.

    Attributes:
        address: of its head, as `ray start` prints it; "" for RAY_ADDRESS, or the cluster that
            runs on this machine, or a new one on this machine alone.
        cpus: cores of a cell, and its threads.
        gpus: cards of a cell, or a part of one; with 0 it sees none.
    """

    address: str = ""
    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise ValueError(f"cpus is {self.cpus}; expected at least 1")
        if not (0 <= self.gpus <= 1 or (self.gpus < 1000 and self.gpus in range(1000))):
            raise ValueError(f"gpus is {self.gpus:g}; expected a whole number, or a part of one")
        if under_torchrun():
            raise ValueError("engine is 'ray' under torchrun; expected one of them")
        # before Ray is imported, which reads them then: it tells its makers nothing of us, and
        # leaves which cards a cell without any sees to `_asked`
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        try:
            import ray  # noqa: F401 - only whether it is there
        except ImportError:
            raise ValueError(f"engine is 'ray' and there is no Ray; {install('ray')}") from None

    def perform(
        self, pending: Sequence[Job], runs: Path, show: Progress
    ) -> Iterator[tuple[Job, str]]:
        """As many at once as the cluster has room for."""
        if not pending:
            return
        import ray

        runs = Path(os.path.abspath(runs))  # nodes begin elsewhere
        with self._cluster(), terminable():
            # a job that was stopped, and not by us, is one whose node is about to go
            task = ray.remote(_perform_on_node).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES,
                retry_exceptions=[Interrupted],
            )  # fmt: skip
            refs = {task.remote(self._asked(job, runs), _versions()): job for job in pending}
            try:
                yield from self._wait(refs, runs, show)
            finally:
                if refs:
                    show.note(STOPPING)
                    for ref in refs:
                        ray.cancel(ref)
                    ray.wait(list(refs), num_returns=len(refs), timeout=GRACE)

    def _wait(self, refs: dict[Any, Job], runs: Path, show: Progress) -> Iterator[tuple[Job, str]]:
        """Each job as it ends; `refs` keeps those that did not."""
        import ray

        begun: set[str] = set()
        nodes = _alive()
        while refs:
            ended, _ = ray.wait(list(refs), timeout=LOOK)
            for job in refs.values():
                # a node tells nothing, but its lock is in the folder
                if job.id not in begun and (runs / job.id / LOCK).exists():
                    begun.add(job.id)
                    show.started(job.id)
            now = _alive()
            for name in nodes - now:
                show.note(f"node {name} is lost; what ran there goes on where there is room")
            nodes = now
            for ref in ended:
                job = refs.pop(ref)
                if job.id not in begun:
                    show.started(job.id)
                yield job, _why(ref, runs / job.id)

    def _asked(self, job: Job, runs: Path) -> Asked:
        kept = {name: value for name, value in os.environ.items() if name.startswith("CHACAL_")}
        if not self.gpus:
            kept["CUDA_VISIBLE_DEVICES"] = ""
        return Asked(
            job=job.to_json(), folder=runs / job.id, command=sys.argv, threads=self.cpus,
            environment=kept, cwd=os.getcwd(),
        )  # fmt: skip

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """A connection to it. What Ray prints about nodes, between our lines, is left out."""
        import ray

        address = self.address or os.environ.get("RAY_ADDRESS", "")
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            try:
                _knock(address)
                ray.init(address=address or None, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
                raise ValueError(
                    f"no Ray cluster answers at {shown(address)}: {one_line(str(error))}; expected "
                    f"HOST:PORT as `ray start --head` prints it, and RAY_AUTH_MODE=token set if "
                    f"the cluster has a token"
                ) from None
            try:
                self._ensure_room()
                yield
            finally:
                ray.shutdown()

    def _ensure_room(self) -> None:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(n.get("CPU", 0) >= self.cpus and n.get("GPU", 0) >= self.gpus for n in nodes):
            have = "; ".join(f"{n.get('CPU', 0):g} and {n.get('GPU', 0):g}" for n in nodes)
            raise ValueError(
                f"a cell takes {self.cpus} core(s) and {self.gpus:g} card(s), and no node of the "
                f"cluster has as many ({have}); expected smaller --cpus and --gpus"
            )


def _knock(address: str) -> None:
    """Whether anybody is at an address; Ray itself would ask for ten minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _alive() -> set[str]:
    """Nodes that answer, as people know them."""
    import ray

    return {f"{n['NodeManagerAddress']} ({n['NodeID'][:8]})" for n in ray.nodes() if n["Alive"]}


def _versions() -> dict[str, str]:
    """What figures depend on."""
    return {"chacal": __version__, "torch": str(torch.__version__)}


def _perform_on_node(asked: Asked, versions: dict[str, str]) -> str:
    """A task: perform a job on this node; why it failed, or ""."""
    import ray

    node = ray.util.get_node_ip_address()
    mark = asked.folder.parent.parent / "scale.json"
    if not mark.exists():
        return f"node {node} sees no {mark}; expected a folder that all nodes share (--out)"
    if (ours := _versions()) != versions:
        return f"node {node} has {ours}; expected {versions}, as where the command was given"
    if not os.path.isdir(asked.cwd):  # files that are named from there are not here either
        asked = dataclasses.replace(asked, cwd=str(mark.parent))
    return perform_apart(asked, threading.Event())


def _why(ref: Any, folder: Path) -> str:
    """Why a task failed, or ""; beside the folder, too, where the job did not say it itself."""
    import ray

    try:
        why = str(ray.get(ref))
    except ray.exceptions.RayTaskError as error:
        why = describe_error(error.cause)
    except ray.exceptions.RayError as error:  # the task died, and those after it
        why = describe_error(error)
    if why and not failure_file(folder).exists():
        record_failure(folder, why)
    return why
