"""What torchrun says is read in one file, and without it a process is the only one."""

import re
from pathlib import Path

import chacal
from chacal.training.torchrun import local_rank, rank, under_torchrun, world_size

PACKAGE = Path(chacal.__file__).parent


def test_without_and_with_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert (under_torchrun(), rank(), world_size(), local_rank()) == (False, 0, 1, 0)
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert (under_torchrun(), rank(), world_size(), local_rank()) == (True, 5, 8, 1)


def test_no_other_file_reads_the_variables():
    said = re.compile(r"[\"'](?:LOCAL_)?RANK[\"']|[\"']WORLD_SIZE[\"']")
    reading = {p.name for p in PACKAGE.rglob("*.py") if said.search(p.read_text(encoding="utf-8"))}
    assert reading == {"torchrun.py"}
