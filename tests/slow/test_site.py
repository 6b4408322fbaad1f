"""The site builds without a warning, loads nothing from another host, and shows its equations."""

import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Loaded(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attrs):
        url = dict(attrs).get(LOADS.get(tag, ""))
        if url:
            self.urls.append(url)


@pytest.fixture(scope="module")
def site(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    printed = run(
        sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out,
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert "WARNING" not in printed
    return out


def test_nothing_is_loaded_from_another_host(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.urls
        assert not [url for url in parser.urls if re.match(r"(\w+:)?//", url)], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", text), sheet


def test_equations_are_rendered(site):
    text = (site / "mathematics.html").read_text(encoding="utf-8")
    assert text.count("<math") > 50
    for page in site.rglob("*.html"):
        assert "arithmatex" not in page.read_text(encoding="utf-8"), page


def test_the_reference_shows_arguments_with_their_shapes(site):
    text = (site / "reference" / "functions.html").read_text(encoding="utf-8")
    for shape in ("(..., n, d) queries", "(batch, n) boolean, True for real tokens"):
        assert shape in text
