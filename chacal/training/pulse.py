"""Which process of a run is gone: each tells the others, every second, that it is still there.

A backend's error says that somebody does not answer, at best with an address. Who waits for one
that itself waits for another would name the wrong one. So all write to the store that brought them
together (torchrun's, which outlives any of them), and who meets an error looks whose pulse has
stopped. One that leaves because of another leaves a note, and is not taken for dead.
"""

from __future__ import annotations

import threading
import time

import torch.distributed as dist

BEAT = 1.0
"""Seconds between two beats."""

PATIENCE = 4.0
"""Seconds without one after which a process is taken for gone, by one that met an error."""


class Pulse:
    """This process's, and its view of the others'."""

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self._stop = threading.Event()
        self.store.set(f"pulse/{rank}", "0")
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while not self._stop.wait(BEAT):
            count += 1
            try:
                self.store.set(f"pulse/{self.rank}", str(count))
            except RuntimeError:  # the store went with the process that held it
                return

    def stop(self) -> None:
        """No more beats: this process leaves."""
        self._stop.set()
        self._thread.join(2 * BEAT)

    def lost(self) -> list[int]:
        """Ranks whose pulse has stopped without a note; 0 if the store itself is gone with it."""
        others = [rank for rank in range(self.world) if rank != self.rank]
        try:
            before = {rank: self.store.get(f"pulse/{rank}") for rank in others}
            time.sleep(PATIENCE)
            found = [
                rank
                for rank in others
                if self.store.get(f"pulse/{rank}") == before[rank]
                and not self.store.check([f"left/{rank}"])
            ]
            self.store.set(f"left/{self.rank}", "1")
        except RuntimeError:
            return [0]
        return found

    def speaks(self, lost: list[int]) -> bool:
        """Whether this process tells of the lost, for all that are left."""
        return self.rank == min(rank for rank in range(self.world) if rank not in lost)
