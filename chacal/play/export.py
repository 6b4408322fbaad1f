"""The page as one file: its modules, its sheet, and the answers to a few stories computed ahead.

It is the same page. Where the served one asks the server, this one looks into a table of questions
and answers; the keys are the questions as JSON, made alike here and in `page/api.js`.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chacal._plain import to_plain
from chacal.play.about import about
from chacal.play.examples import EXAMPLES
from chacal.play.models import BOXES
from chacal.play.player import Player
from chacal.play.questions import answer, page_files

GAMMAS = [0, *(round(0.1 * i, 1) for i in range(1, 9))]
"""γ that the slider of an exported page has, besides the model's own."""

GRIDS = 4

ORDER = (
    "dom.js", "api.js", "state.js", "tips.js", "arcs.js", "figures.js", "hops.js", "boxes.js",
    "editor.js", "chain.js", "main.js",
)  # fmt: skip
"""Modules, each after those that it imports; together they are one."""


def export_page(file: Path) -> None:
    """Write the page; it takes about a minute."""
    if not file.parent.is_dir():
        raise ValueError(f"{file.parent} is not there; expected a folder to write {file.name} to")
    player = Player()
    known = {key_of("about", {}): to_plain(about(player))}
    for kind, asked in questions(player):
        known[key_of(kind, asked)] = answer(player, kind, asked)
    packed = base64.b64encode(gzip.compress(json.dumps(known).encode(), mtime=0)).decode()
    file.write_text(assemble(page_files(), packed), encoding="utf-8")


def key_of(kind: str, asked: dict[str, Any]) -> str:
    """A question as the page's table names it."""
    text = json.dumps(dict(sorted(asked.items())), separators=(",", ":"), ensure_ascii=False)
    return f"{kind} {text}"


def questions(player: Player) -> Iterator[tuple[str, dict[str, Any]]]:
    """What can be asked of an exported page.

    Of every example: the boxes as every model says; how the exact model found each at every step,
    and the others at the end; and for the example's own box, the exact model at other γ.
    """
    exact = BOXES[0].name
    for example in EXAMPLES:
        text = example.text
        last = len(player.read(text).told)
        letters = player.story(text, []).boxes
        for model in BOXES:
            yield "story", {"text": text, "models": [model.name]}
            for step in range(1 if model.name == exact else last, last + 1):
                asked = {"text": text, "model": model.name, "step": step}
                yield "rows", asked
                for box in letters:
                    yield "hops", {**asked, "box": box}
        for gamma in GAMMAS:
            asked = {"text": text, "model": exact, "step": last, "gamma": gamma}
            yield "story", {"text": text, "models": [exact], "gamma": gamma}
            yield "rows", asked
            yield "hops", {**asked, "box": example.box}
    for seed in range(GRIDS):
        yield "chain", {"seed": seed}
        for gamma in GAMMAS:
            yield "chain", {"seed": seed, "gamma": gamma}


def assemble(files: dict[str, bytes], packed: str) -> str:
    """The page's files and its answers as one text that needs no other."""
    text = {name: data.decode() for name, data in files.items()}
    icon = base64.b64encode(files["icon.svg"]).decode()
    modules = "\n".join(_plain_script(text[name]) for name in ORDER)
    page = text["index.html"]
    for old, new in (
        ('href="/page/icon.svg"', f'href="data:image/svg+xml;base64,{icon}"'),
        ('<link rel="stylesheet" href="/page/style.css">', f"<style>\n{text['style.css']}</style>"),
        ('<script type="module" src="/page/main.js"></script>\n', ""),
        (
            "</body>",
            f'<script type="application/octet-stream" id="ahead">{packed}</script>\n'
            f'<script type="module">\n{modules}</script>\n</body>',
        ),
    ):
        if page.count(old) != 1:
            raise ValueError(f"index.html has {page.count(old)} of {old!r}; expected one")
        page = page.replace(old, new)
    return page


def _plain_script(module: str) -> str:
    """A module without its imports and exports: all of them share one scope."""
    module = re.sub(r"^import .*;\n", "", module, flags=re.MULTILINE)
    return re.sub(r"^export ", "", module, flags=re.MULTILINE)
