"""A browser, a server of its own, and pages that fail a test by an error or a foreign request."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHACAL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Server:
    """`chacal play` as a process, which can be stopped and started again at the same port."""

    def __init__(self):
        self.port = 0
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chacal", "play", "--no-browser", "--port", str(self.port)],
            cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line + self.process.stderr.read()
        self.address, self.port = found[0], int(found[1])

    def stop(self):
        """What it said meanwhile."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=20)
        return said


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium, or set CHACAL_CHROMIUM)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(browser):
    one = Server()
    yield one
    said = one.stop()
    assert "Traceback" not in said, said


@pytest.fixture
def open_page(browser, server):
    """Open the page at an address's end; at the end of a test, nothing may have gone wrong."""
    contexts, problems = [], []

    def go(end="", *, address=None, expected=None, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        own = address or server.address

        def note(kind, text):
            if expected is None or not re.search(expected, text):
                problems.append(f"{kind}: {text}")

        page.on("console", lambda m: note("console", m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: note("error", str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith((own, "data:", "blob:")) else note("asks", r.url),
        )
        page.goto(own + end)
        page.wait_for_selector("#tokens .token, #grid .cell")
        return page

    yield go
    for context in contexts:
        context.close()
    assert not problems
