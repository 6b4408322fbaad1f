"""A processor that announces AMX and may not use it, played by programs that kill themselves."""

import os
import subprocess
import sys

import pytest

from chacal.training.bfloat16 import PROGRAM, VARIABLE, WITHOUT_AMX, ensure_bfloat16

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
CURED = f"import os, signal; '{VARIABLE}' in os.environ or os.kill(os.getpid(), signal.SIGILL)"
# dies afresh without the variable, and in a copy of the test's process whatever is set
TOO_LATE = f"{CURED}\nimport sys; 'pytest' in sys.modules and os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def amx(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that it is put back as it was
    monkeypatch.delenv(VARIABLE)
    path = tmp_path / "cpuinfo"
    path.write_text("flags\t\t: fpu avx512f amx_bf16 amx_tile\n")
    return path


def test_a_refused_amx_is_left_alone_for_the_run_and_told_once(amx, capfd):
    ensure_bfloat16(program=CURED, cpuinfo=amx)
    assert os.environ[VARIABLE] == WITHOUT_AMX
    ensure_bfloat16(program=CURED, cpuinfo=amx)
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert f"{VARIABLE}={WITHOUT_AMX}" in told.err


def test_only_one_process_of_a_run_speaks(amx, capfd):
    ensure_bfloat16(program=CURED, cpuinfo=amx, quiet=True)
    assert os.environ[VARIABLE] == WITHOUT_AMX
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("program", ["pass", "raise SystemExit(1)"])  # not killed is healthy
def test_a_healthy_processor_changes_nothing(amx, capfd, program):
    ensure_bfloat16(program=program, cpuinfo=amx)
    assert VARIABLE not in os.environ
    assert capfd.readouterr().err == ""


def test_the_products_are_made():
    # where AMX is refused the suite has set the variable by now
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], check=True)


@pytest.mark.parametrize("program", [KILLED, TOO_LATE])
def test_what_cannot_be_cured_here_is_refused_with_a_way_out(amx, capfd, program):
    with pytest.raises(ValueError, match="before Python starts, or leave bf16 off"):
        ensure_bfloat16(program=program, cpuinfo=amx)
    assert VARIABLE not in os.environ
    assert capfd.readouterr().err == ""


def test_nothing_is_tried_without_need(amx, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.write_text("flags\t\t: fpu avx512f avx512_bf16\n")
    ensure_bfloat16(program=KILLED, cpuinfo=other)
    ensure_bfloat16(program=KILLED, cpuinfo=tmp_path / "not-linux")
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "AVX2")
    ensure_bfloat16(program=KILLED, cpuinfo=amx)
    assert os.environ[VARIABLE] == "AVX2"
