"""`chacal play`: the page on this machine, or as one file."""

from __future__ import annotations

import sys
from pathlib import Path


def play_page(export: Path | None, host: str, port: int, browser: bool) -> None:
    """Serve the page, or write it."""
    if export is not None:
        from chacal.play.export import export_page

        export_page(export)
        print(f"written: {export}")
        return
    from chacal.play.serve import serve

    serve(host, port, browser, lambda line: print(line, file=sys.stderr, flush=True))
