"""What the site needs beyond its pages: files from outside docs/, and equations as MathML.

Pages link to each other as GitHub does, by the path of the file. Three of those files are not in
this folder (`OUTSIDE`): they are pages of the site too, and links from and to them are turned.
Links to other files of the repository, which the site has no page for, become plain text. MathML
is written when the site is built, so a reader's browser needs no script for it, nor a network.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "results/report.md": "report.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """The pages from outside this folder."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links by path turned into links between pages."""
    name = page.file.src_uri
    sources = {made: source for source, made in OUTSIDE.items()}
    folder = (ROOT / sources.get(name, f"docs/{name}")).parent

    def turn(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or ":" in path or name.startswith("reference/"):
            return match[0]
        file = (folder / path).resolve().relative_to(ROOT).as_posix()
        inside = OUTSIDE.get(file, file.removeprefix("docs/") if file.startswith("docs/") else "")
        return f"[{text}]({inside}{mark}{anchor})" if inside else text

    fences = FENCE.findall(markdown)
    prose = FENCE.split(markdown)
    turned = [LINK.sub(turn, part) for part in prose]
    return "".join(a + b for a, b in zip(turned, [*fences, ""], strict=True))


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Every equation that arithmatex marked, as MathML."""

    def render(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2]).strip(), display=display)

    return MATH.sub(render, content)
