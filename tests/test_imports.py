"""Imports point one way: ops -> operators -> nn -> hf; tasks stand alone; report has no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "chacal"
FILES = sorted(PACKAGE.rglob("*.py"))

# what of chacal a room may import, itself apart
MAY_IMPORT = {
    "ops": {"kernels", "native"},
    "kernels": set(),
    "native": {"_files"},
    "decoding": {"ops"},
    "operators": {"ops", "decoding", "_plain", "_echo"},
    "parallel": {"ops", "operators"},
    "nn": {"ops", "decoding", "operators", "parallel"},
    "hf": {"ops", "decoding", "operators", "nn", "report", "_extras", "_depth"},
    "tasks": {"_plain", "_files", "_extras", "_memory", "_echo"},
    "eval": {"tasks", "_extras"},
    "bench": {
        "ops", "operators", "decoding", "kernels", "native", "parallel", "_orphans", "_memory",
    },
    "report": {"_plain", "_files", "_extras", "_echo"},
    "training": {
        "ops", "operators", "nn", "hf", "tasks", "bench", "parallel", "_version", "_plain",
        "_files", "_memory", "_echo",
    },
    "experiments": {
        "ops", "operators", "nn", "tasks", "training", "bench", "report", "_plain", "_files",
        "_orphans", "_memory", "_echo", "_extras", "_version", "_depth",
    },
    "play": {"operators", "nn", "tasks", "training", "_plain", "_extras", "_echo"},
    "commands": {
        "operators", "nn", "tasks", "training", "bench", "experiments", "report", "eval", "play",
        "_version", "_extras", "_memory", "_echo",
    },
    "__init__": {"ops", "decoding", "operators", "nn", "_version"},
    "__main__": {"commands"},
    "_version": set(),
    "_plain": set(),
    "_files": set(),
    "_extras": set(),
    "_orphans": set(),
    "_memory": set(),
    "_echo": set(),
    "_depth": set(),
}  # fmt: skip

LAZY = [
    "click", "rich", "matplotlib", "transformers", "tokenizers", "datasets", "rouge_score",
    "huggingface_hub", "peft", "starlette", "uvicorn", "ray", "chacal.kernels",
    "torch._dynamo", "triton",
]  # fmt: skip


def part_of(path: Path) -> str:
    """The folder or the module directly below chacal/ that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever in the file."""
    package = ("chacal", *path.relative_to(PACKAGE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "chacal":  # `from chacal import nn` imports a part
                names |= {f"chacal.{alias.name}" for alias in node.names}
            else:
                names.add(module)
    return names


def parts_imported(path: Path) -> set[str]:
    """Parts of chacal that a file imports; a public name of the package is a part of its own."""
    heads = [name.split(".") for name in imported(path)]
    return {".".join(head[1:2]) for head in heads if head[0] == "chacal"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    room = part_of(path)
    for other in parts_imported(path) - {room}:
        assert other in MAY_IMPORT[room], f"chacal.{room} imports chacal.{other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_stays_readable_in_one_sitting(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, "a file past 400 lines wants to be two"


def test_the_public_names_are_there():
    import chacal

    assert all(hasattr(chacal, name) for name in chacal.__all__)
    assert chacal.nn.Attention
    assert chacal.nn.Transformer
    assert set(chacal.operators.OPERATORS.values()) <= {getattr(chacal, n) for n in chacal.__all__}


def test_report_imports_no_torch():
    for path in FILES:
        if part_of(path) == "report":
            assert not {name for name in imported(path) if name.split(".")[0] == "torch"}, path


def test_the_rules_see_a_breach():
    # the parser's own check: what it must find in files that are there
    assert "operators" in parts_imported(PACKAGE / "operators" / "notation.py")
    assert parts_imported(PACKAGE / "operators" / "family.py") == {
        "ops",
        "decoding",
        "operators",
        "_plain",
    }
    assert "torch" in imported(PACKAGE / "ops" / "streaming.py")
    assert parts_imported(PACKAGE / "ops" / "streaming.py") == {"ops", "native"}


def test_importing_chacal_loads_only_what_it_needs():
    code = f"import sys, chacal; print([name for name in {LAZY} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
