"""From a sentence to its boxes, in seconds: `chacal play` asked over HTTP as its page asks it."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

MODELS = ["boxes", "boxes-dense"]
"""Side by side, as the page opens."""

UPDATES = 10


@dataclass(frozen=True, kw_only=True)
class PageTimes:
    """Seconds from a sentence sent to the boxes of all models received."""

    pages: int
    answers: int
    median: float
    slowest: float


class Client:
    """A page's questions, over one connection."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port)

    def ask(self, kind: str, asked: dict[str, Any]) -> Any:
        """The answer."""
        headers = {"content-type": "application/json"}
        self.connection.request("POST", f"/api/{kind}", json.dumps(asked), headers)
        answer = self.connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            raise ValueError(f"the server answers {answer.status} to {kind}: {body}")
        return body

    def type_stories(self, seeds: range) -> list[float]:
        """Type stories sentence by sentence; the seconds until the boxes are there, for each."""
        taken = []
        for seed in seeds:
            story = self.ask("draw", {"seed": seed, "boxes": 7, "updates": UPDATES}).split("\n")
            for count in range(1, len(story) + 1):
                text = "\n".join(story[:count])
                begun = time.perf_counter()
                self.ask("story", {"text": text, "models": MODELS})
                taken.append(time.perf_counter() - begun)
                self.ask("hops", {"text": text, "model": MODELS[0], "box": "A", "step": count})
        self.connection.close()
        return taken


def time_page(pages: int, rounds: int) -> PageTimes:
    """Time answers while so many pages type at once, each its own stories.

    Args:
        pages: open; each waits for the boxes and the hops, then types the next sentence.
        rounds: stories that each types.
    """
    command = [sys.executable, "-m", "chacal", "play", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stderr.readline() if server.stderr else ""
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            if found is None:
                raise ValueError(
                    line.removeprefix("chacal: ").strip() or "the server did not start"
                )
            port = int(found[1])
            Client(port).type_stories(range(10**6, 10**6 + 1))  # loads the models
            with ThreadPoolExecutor(pages) as threads:
                own = [range(i * rounds, (i + 1) * rounds) for i in range(pages)]
                times = list(threads.map(lambda seeds: Client(port).type_stories(seeds), own))
        finally:
            server.terminate()
    taken = [seconds for each in times for seconds in each]
    return PageTimes(
        pages=pages, answers=len(taken), median=statistics.median(taken), slowest=max(taken)
    )
