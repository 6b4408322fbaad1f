"""A library of this machine: made once, kept, and missed without harm."""

import os
import subprocess
import sys
import warnings

import pytest

from chacal.native import build

CODE = """
import torch, chacal
from chacal.native.build import library
q = torch.ones(1, 30, 4)
assert chacal.resolvent_attention(q, q, q).isfinite().all()
print(library() is not None)
"""


@pytest.fixture
def afresh(monkeypatch, tmp_path):
    """A process that has not looked for a library, with an empty cache folder."""
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CHACAL_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build._say, "__defaults__", (set(),))
    source = tmp_path / "small.c"  # compiled in no time
    source.write_text("int chacal_forward(void) { return 0; }\n")
    monkeypatch.setattr(build, "SOURCES", [source])
    build._made.cache_clear()
    build._own_folder.cache_clear()
    yield tmp_path
    build._made.cache_clear()
    build._own_folder.cache_clear()


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
def test_made_once_and_found_by_the_next_process(afresh, monkeypatch):
    assert build.library() is not None
    (made,) = (afresh / "cache" / "native").iterdir()
    assert (made.parent.stat().st_mode & 0o777) == 0o700
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    build._made.cache_clear()
    assert build.library() is not None
    assert list(made.parent.iterdir()) == [made]


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("keep", [0, 31, 5000, -1])
def test_half_a_library_is_made_anew(afresh, keep):
    path = build.compiled(build.find_compiler())
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    assert build.library() is not None
    assert path.read_bytes() != data[:keep]


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
def test_what_cannot_be_loaded_is_made_for_this_process(afresh):
    path = build.compiled(build.find_compiler())
    path.write_bytes(b"whole, and no library")
    build._seal(path)
    assert build.library() is not None
    assert path.read_bytes().startswith(b"whole")


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("how", ["others may write", "a link"])
def test_a_folder_that_is_not_ours_alone_is_not_used(afresh, how):
    folder = afresh / "cache" / "native"
    folder.mkdir(parents=True)
    if how == "a link":
        folder.rmdir()
        (afresh / "elsewhere").mkdir()
        folder.symlink_to(afresh / "elsewhere")
    else:
        folder.chmod(0o777)
    assert build.library() is not None
    assert not list(folder.iterdir())


def test_another_processor_has_its_own(afresh, tmp_path):
    one, two = (tmp_path / name for name in ("one", "two"))
    one.write_text("processor: 0\nflags: avx2\nprocessor: 1\nflags: avx2\ncpu MHz: 1\n")
    two.write_text("processor: 0\nflags: avx2 avx512f\n")
    assert build._processor(one)[2:] == ("flags: avx2",)
    assert build._processor(one) != build._processor(two)
    assert build._processor(tmp_path / "missing")[2:] == ()


def test_switched_off(afresh, monkeypatch):
    monkeypatch.setenv("CHACAL_NATIVE", "0")
    monkeypatch.setenv("CC", script(afresh / "cc", "echo touched; exit 1"))
    assert build.library() is None


def test_no_compiler_is_no_news(afresh, monkeypatch):
    monkeypatch.setenv("PATH", str(afresh))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.find_compiler() is None
        assert build.library() is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'what is -O3?' >&2; exit 1", "what is -O3?"),
        ("exit 3", "exit 3"),
        ('while [ "$1" != -o ]; do shift; done; echo junk > "$2"', "file too short|invalid ELF"),
    ],
)
def test_a_compiler_that_fails_is_told_once(afresh, monkeypatch, text, said):
    monkeypatch.setenv("CC", script(afresh / "cc", text))
    with pytest.warns(UserWarning, match=rf"(?s)cc made no library .*({said}).*plain PyTorch"):
        assert build.library() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.library() is None


def test_warnings_that_are_errors_do_not_compile_again(afresh, monkeypatch):
    monkeypatch.setenv("CC", script(afresh / "cc", f"echo >> {afresh / 'calls'}; exit 1"))
    with pytest.raises(UserWarning, match="made no library"):
        build.library()
    calls = (afresh / "calls").read_text()
    assert build.library() is None
    assert (afresh / "calls").read_text() == calls


def test_cc_that_is_no_command(afresh, monkeypatch):
    monkeypatch.setenv("CC", "gcc '")
    with pytest.warns(UserWarning, match="CC of the environment made no library.*No closing quot"):
        assert build.library() is None


def test_a_compiler_that_is_not_there(afresh, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -x")
    with pytest.warns(UserWarning, match="no-such-compiler -x made no library"):
        assert build.library() is None


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
def test_a_cache_that_cannot_be_written(afresh, monkeypatch):
    (afresh / "cache").write_text("a file, no folder")
    assert build.library() is not None
    assert (afresh / "cache").read_text() == "a file, no folder"


@pytest.mark.parametrize("native", ["0", "1"])
def test_in_a_process_of_its_own(native, tmp_path):
    environment = os.environ | {"CHACAL_NATIVE": native, "CHACAL_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    there = native == "1" and build.find_compiler() is not None
    assert done.stdout.strip() == str(there)
    assert bool(list(tmp_path.iterdir())) == there
