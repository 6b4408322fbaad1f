"""`chacal report`: the page and the Markdown file beside the results that they are of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from chacal._extras import install
from chacal.report.curves import has_matplotlib
from chacal.report.files import read_results
from chacal.report.markdown import markdown
from chacal.report.page import page
from chacal.report.results import TableResult

PLAY = "play.html"
"""What `chacal play --export` is to write beside the report, for the report to link to it."""


def write_report(
    results: Path, never_run: Mapping[str, TableResult], out: Path | None = None
) -> list[str]:
    """Write report.html and report.md.

    Args:
        results: a folder of `chacal reproduce`, or one that holds several scales.
        never_run: name -> what is shown of a table that is not there, in the report's order.
        out: folder to write to; `results` unless given.

    Returns:
        lines that say what was written and what was left out.
    """
    everything, notes = read_results(results, never_run)
    to = results if out is None else out
    if to.exists() and not to.is_dir():
        raise ValueError(f"{to} is a file; expected a folder for the report")
    to.mkdir(parents=True, exist_ok=True)
    findings = _findings_from(to)
    files = {
        "report.html": page(everything, notes, findings, PLAY if (to / PLAY).is_file() else ""),
        "report.md": markdown(everything, findings),
    }
    for name, text in files.items():
        try:
            (to / name).write_text(text, encoding="utf-8")
        except OSError as error:  # that of a full disk does not name the file
            raise ValueError(f"{to / name} cannot be written: {error.strerror}") from None
    if not has_matplotlib():
        notes.append(f"no plots: they need matplotlib; {install('plot')}")
    return [*notes, *(f"written: {to / name}" for name in files)]


def _findings_from(folder: Path) -> str:
    """The path to docs/findings.md from a folder of the repository; "" where there is none."""
    here = folder.resolve()
    for above in (here, *here.parents):
        if (above / "docs" / "findings.md").is_file() and (above / "chacal").is_dir():
            return Path(os.path.relpath(above / "docs" / "findings.md", here)).as_posix()
    return ""
