"""Wheel and sdist carry what they must, and the wheel alone, without the clone, works."""

import os
import re
import shutil
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKPOINT = [
    f"chacal/checkpoints/boxes/{name}"
    for name in ("best.safetensors", "config.json", "environment.json", "result.json")
]
PLAYED = [
    *(f"chacal/play/page/{name}" for name in ("index.html", "style.css", "main.js", "icon.svg")),
    *(f"chacal/checkpoints/{name}/best.safetensors" for name in ("boxes-dense", "chains")),
]


@pytest.fixture(scope="module")
def dist(run, tmp_path_factory):
    """Wheel and sdist, built as `make dist` does, from a copy: a build leaves files behind."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "results", "runs", "data")
    shutil.copytree(ROOT, source, ignore=leave)
    run(sys.executable, "-m", "build", "--outdir", folder, source)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.glob("chacal-*"))
    return folder


@pytest.fixture(scope="module")
def clean(run, dist, tmp_path_factory):
    """A new environment with the wheel and what it requires, and nothing of the clone."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env", with_pip=True)
    (wheel,) = dist.glob("*.whl")
    python = folder / "env" / "bin" / "python"
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "-c", ROOT / "constraints.txt", wheel, cwd=folder,
    )  # fmt: skip
    bare = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def call(program, *arguments):
        return run(python.with_name(program), *arguments, cwd=folder, env=bare)

    where = call("python", "-c", "import chacal; print(chacal.__file__)").strip()
    assert where.startswith(str(folder)), where
    return call


def test_the_wheel_carries_the_package_alone(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {*CHECKPOINT, *PLAYED} <= set(names)
    assert "chacal/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"chacal"}


def test_the_sdist_carries_tests_and_docs(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(CHECKPOINT) <= names
    assert {"docs/index.md", "tests/oracles.py", "constraints.txt", "mkdocs.yml"} <= names


def test_track(clean):
    printed = clean(
        "chacal", "track", "The camera is in Box F. Move the contents of Box F to Box B."
    )
    assert re.search(r"Box B.*camera", printed)


def test_the_page_is_written_without_the_extra(clean):
    assert "written: " in clean("chacal", "play", "--export", "play.html")


def test_bench(clean):
    printed = clean("chacal", "bench", "ops", "chacal", "block/3", "-n", "64", "--rounds", "2")
    assert "block/3" in printed


def test_a_missing_extra_is_told(clean):
    code = "try:\n    import chacal.hf\nexcept ImportError as error:\n    print(error)"
    assert "install the extra 'hf'" in clean("python", "-c", code)


def test_the_examples_of_readme(clean):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        clean("python", "-W", "error", "-c", block)


def test_the_demo(clean):
    table = clean("chacal", "demo").partition("Right answers by hops")[2]
    shares = {
        name: [float(x) for x in re.findall(r"([\d.]+) %", row)]
        for name, row in re.findall(
            r"^(exact ChaCAL|ordinary attention) +(.*)$", table, re.MULTILINE
        )
    }
    assert min(shares["exact ChaCAL"]) > 99
    assert shares["ordinary attention"][-2] < 20  # 15 hops; one in eight is chance
    assert "install the extra 'plot'" in table
