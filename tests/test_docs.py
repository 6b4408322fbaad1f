"""README and docs: links lead somewhere, examples run, commands and their options exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

import chacal
from chacal.commands.cli import cli

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md",
    ROOT / "results" / "README.md", ROOT / "results" / "report.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]  # fmt: skip
NOT_RUN = ("not run by the tests: ", "run by tests/")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
CODE = re.compile(r"`(chacal [^`]+)`")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def anchors(page):
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def examples():
    """Every Python block, with what the comment right above it says."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for number, match in enumerate(FENCE.finditer(text)):
            if match[1] == "python":
                note = re.search(r"<!-- (.*) -->\n$", text[: match.start()])
                yield page, number, match[2], note[1] if note else ""


def commands():
    """Every call of chacal in a shell block or between backticks, as words."""
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for kind, block in FENCE.findall(text) if kind == "sh"
                 for line in block.replace("\\\n", " ").splitlines()]  # fmt: skip
        prose = FENCE.sub("", text)
        for line in [*lines, *(c.replace("\n", " ") for c in CODE.findall(prose))]:
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                if "chacal" in words and words[0] in ("chacal", "torchrun"):
                    yield page, words[words.index("chacal") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", path):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(file), f"{name_of(page)} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page):
    # `chacal/tasks/base.py`, `tests/oracles.py`, `ops/window.py`; NAME and the like are made up
    text = FENCE.sub("", page.read_text("utf-8"))
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
        assert (ROOT / path).exists() or (ROOT / "chacal" / path).exists(), path


@pytest.mark.parametrize(
    ("page", "code"),
    [
        pytest.param(page, code, id=f"{name_of(page)}-{number}")
        for page, number, code, note in examples()
        if not note.startswith(NOT_RUN)
    ],
)
def test_examples_run(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {})


def test_examples_that_are_not_run_say_why_or_where():
    notes = [note for *_, note in examples() if note.startswith(NOT_RUN)]
    assert len(notes) == 5
    for note in notes:
        for path in re.findall(r"tests/[\w/]+\.py", note):
            assert (ROOT / path).exists()


def test_operators_in_the_guide_are_read():
    text = (ROOT / "docs" / "operators.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## Text form")[2], re.MULTILINE)
    texts = [operator for row in rows for operator in re.findall(r"`([^`]+)`", row)]
    assert len(texts) > 15
    for operator in texts:
        chacal.parse_operator(operator)


@pytest.mark.parametrize(
    ("page", "words"),
    [pytest.param(p, w, id=f"{name_of(p)}: {' '.join(w)[:60]}") for p, w in commands()],
)
def test_commands_and_options_exist(page, words):
    command: click.Command = cli
    words = list(words)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper():  # a word that stands for any of them
            return
        assert name in command.commands, f"{name_of(page)}: chacal has no {name!r}"
        command = command.commands[name]
    known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    known |= {"--help", "-h"}
    for word in words:
        if word.startswith("-") and not re.match(r"-\d", word):
            assert word.split("=")[0] in known, f"{name_of(page)}: {command.name} has no {word}"
