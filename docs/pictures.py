"""Pictures of the page of `chacal play` for README and docs: `make pictures` takes them anew."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

VIEWS = {
    "play.png": ("", 1280, "light", 1290),
    "play-dark.png": ("#models=boxes,boxes-dense,boxes-window&step=6&box=D", 1280, "dark", 0),
    "play-gamma.png": ("#gamma=0.3", 1280, "light", 0),
    "play-pointers.png": ("#view=chain", 900, "light", 0),
    "play-phone.png": ("#models=boxes", 390, "light", 0),
}
"""File -> the view's address, its width, light or dark, and its height (0: all of the page)."""


def main() -> None:
    """Start the page, take every view, and stop it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "chacal", "play", "--no-browser", "--port", "0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = server.stderr.readline() if server.stderr else ""
        (address,) = re.findall(r"http://\S+", line)
        with sync_playwright() as tool:
            browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for name, (end, width, scheme, height) in VIEWS.items():
                page = browser.new_page(
                    viewport={"width": width, "height": height or 900}, color_scheme=scheme
                )
                page.goto(address + end)
                page.wait_for_selector(".arc")
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(400)  # the arcs fade in
                page.screenshot(path=DOCS / name, full_page=not height)
                print(f"written: {DOCS / name}")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
