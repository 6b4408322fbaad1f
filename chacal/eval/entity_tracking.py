"""BabyLM's entity tracking: which of some options follows, the first of which is right.

    --metadata entity_tracking=FOLDER    with regular.jsonl, ambiref.jsonl and move_contents.jsonl

Each line has `input_prefix`, `options` and `numops`. The option whose tokens have the largest
summed log-probability counts; scores are means over the numbers of operations, and the group's
means over the files, as in BabyLM's pipeline of 2025.
"""

import os
from functools import partial
from typing import Any

from chacal.eval.documents import dataset, some, told
from chacal.eval.scores import with_hard
from chacal.eval.stories import at_start
from chacal.tasks.boxes_files import items
from chacal.tasks.stored import read_jsonl


def documents(name: str, **metadata: Any) -> Any:
    """What the harness asks of one file."""
    folder = told(metadata, "entity_tracking", "the folder of regular.jsonl")
    path = os.path.join(folder, f"{name}.jsonl")
    rows = [_document(where, row) for where, row in read_jsonl(path)]
    if not rows:
        raise ValueError(f"{path}: expected at least one example")
    return dataset(test=some(rows, metadata))


regular = partial(documents, "regular")
ambiref = partial(documents, "ambiref")
move_contents = partial(documents, "move_contents")


def _document(where: str, row: dict[str, Any]) -> dict[str, Any]:
    prefix, options, numops = row.get("input_prefix"), row.get("options"), row.get("numops")
    if (
        not isinstance(prefix, str)
        or not isinstance(options, list)
        or len(options) < 2
        or not all(isinstance(option, str) and option for option in options)
        or type(numops) is not int
    ):
        raise ValueError(
            f"{where}: expected input_prefix (a text), options (two texts or more) and numops"
        )
    try:
        start = at_start(prefix)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    shortest = [option for option in options if len(option) == min(map(len, options))]
    return {
        "prefix": prefix,
        "options": options,
        "numops": numops,
        "chance": 1 / len(options),
        # one of those that are equally short, at random
        "shortest": float(options[0] in shortest) / len(shortest),
        "start": float(items(options[0]) == start),
    }


def score(
    document: dict[str, Any], answers: list[tuple[float, bool]]
) -> dict[str, tuple[int, float]]:
    """Of one document, with its operations: the model's choice, and what needs no understanding.

    "start" takes the option that says what the box held at first.
    """
    sums = [log_probability for log_probability, _ in answers]
    scores = {
        "acc": float(sums.index(max(sums)) == 0),
        **{name: document[name] for name in ("chance", "shortest", "start")},
    }
    numops = document["numops"]
    return with_hard({name: (numops, value) for name, value in scores.items()}, numops)
