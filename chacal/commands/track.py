"""`chacal track`: read stories of boxes and say what a trained model thinks is in each box."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from chacal._echo import one_line
from chacal.commands.console import console
from chacal.tasks.reading import read_story
from chacal.training.tracker import Tracker


def track_stories(
    story: str | None,
    *,
    file: Path | None = None,
    run: Path | None = None,
    as_json: bool = False,
    objects: bool = False,
) -> None:
    """Print the state of every box for a story, for each line of a file, or as it is typed."""
    if story is not None and file is not None:
        raise ValueError("a story and --file are both given; expected one of them")
    tracker = Tracker(run)
    if objects:
        print("\n".join(tracker.objects))
        return
    if story is not None:
        stories: Iterator[tuple[int, str]] = iter([(1, story)])
    elif file is not None:
        stories = _lines(file)
    elif sys.stdin.isatty():
        _converse(tracker, as_json)
        return
    else:
        stories = _paragraphs()
    number = 0
    for number, text in stories:
        try:
            _print(tracker, text, as_json)
        except ValueError as error:
            place = f"{file}, line {number}: " if file is not None else ""
            raise ValueError(f"{place}{error}") from None
    if not number:
        raise ValueError(f"{file or 'standard input'} is empty; expected a story")


def _print(tracker: Tracker, story: str, as_json: bool) -> None:
    task = tracker.task
    reading = read_story(story, task.boxes, tracker.objects, task.max_items)
    reading.require()
    if not reading.told:
        raise ValueError(f"{story!r} says of nothing where it is; expected 'The key is in Box A.'")
    as_read = " ".join(sentence.text for sentence in reading.told)
    if as_read != " ".join(story.split()):
        _warn(f"read as: {as_read}")
    plain = reading.plain
    truth, told = (
        {box: [reading.names.get(item, item) for item in items] for box, items in state.items()}
        for state in (tracker.parse(plain), tracker.answer(plain))
    )
    if as_json:
        print(json.dumps(told), flush=True)
    else:
        out = console()
        for box, items in told.items():
            out.print(f"Box {box}  {', '.join(items) or '-'}")
    count = tracker.updates(plain)
    if count > tracker.task.updates:
        _warn(f"{count} updates; the model was trained on at most {tracker.task.updates}")
    wrong = [box for box in truth if sorted(truth[box]) != sorted(told.get(box, []))]
    if wrong:
        right = "; ".join(f"Box {box}: {', '.join(truth[box]) or 'empty'}" for box in wrong)
        _warn(f"the model is wrong here; by the story it is {right}")


def _converse(tracker: Tracker, as_json: bool) -> None:
    """Sentence by sentence from a terminal; an empty line starts a new story."""
    _warn("tell a story of boxes, a sentence a line (empty line: new story; Ctrl-D: end)")
    told: list[str] = []
    for line in iter(_ask, None):
        if not line.strip():
            told = []
            continue
        try:
            _print(tracker, "\n".join([*told, line]), as_json)
            told.append(line)
        except ValueError as error:
            _warn(str(error))


def _ask() -> str | None:
    try:
        return input("> ")
    except EOFError:
        print()
        return None


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"cannot read {file}: {reason}; expected a story per line") from None
    return ((i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip())


def _paragraphs() -> Iterator[tuple[int, str]]:
    """Stories from standard input, a sentence or more a line, empty lines between stories."""
    paragraphs = [p for p in re.split(r"\n\s*\n", sys.stdin.read()) if p.strip()]
    return enumerate((" ".join(p.split()) for p in paragraphs), 1)


def _warn(text: str) -> None:
    print(f"chacal: {one_line(text)}", file=sys.stderr, flush=True)
