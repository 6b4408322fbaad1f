"""What torchrun tells the processes it starts; its environment variables are read only here."""

import os


def under_torchrun() -> bool:
    """Whether it started this process."""
    return "WORLD_SIZE" in os.environ


def rank() -> int:
    """Which of its processes this is; 0, the one that writes and speaks for all, without it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes it started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Which of this machine's processes this is, and so which of its GPUs is ours."""
    return int(os.environ.get("LOCAL_RANK", "0"))
