"""Kim and Schuster's stories from their files: what a box holds, told in the model's own words.

    --metadata kim_schuster=FOLDER    with dev-t5.jsonl and test-t5.jsonl

An answer is right if it names the same set of things in any order, as their own script has it.
Files for fine-tuned models leave "contains the letter" to the model, those for others "the letter".
Examples for `--num_fewshot` come from the dev file.
"""

import os
from typing import Any

from chacal.eval.documents import dataset, some, told
from chacal.eval.scores import with_hard
from chacal.eval.stories import at_start, chance
from chacal.tasks.boxes_files import FILES, Example, items, read_examples

SHOWN = 200
"""Lines of the dev file from which examples are drawn."""


def documents(**metadata: Any) -> Any:
    """What the harness asks: the stories of the test file."""
    folder = told(metadata, "kim_schuster", "the folder of test-t5.jsonl")
    test, shown = (read_examples(os.path.join(folder, FILES[s])) for s in ("test", "valid"))
    return dataset(
        test=[_document(example) for example in some(test, metadata)],
        fewshot=[_document(example) for example in shown[:SHOWN]],
    )


def _document(example: Example) -> dict[str, Any]:
    content = items(example.content)
    try:
        start = at_start(example.prompt)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}") from None
    return {
        "prompt": example.prompt,
        "content": example.content,
        "numops": example.numops,
        "chance": chance(example.prompt, content),
        "shortest": float(not content),
        "start": float(start == content),
    }


def score(document: dict[str, Any], answers: list[str]) -> dict[str, float]:
    """Of one answer: whether it is right, and whether what needs no understanding is.

    "shortest" says that the box is empty, "start" that it holds what it held at first.
    """
    said = items(answers[0].partition(".")[0])
    right = float(said == items(document["content"]))
    scores = {
        "exact_match": right,
        **{name: document[name] for name in ("chance", "shortest", "start")},
    }
    parts = {f"exact_match_ops_{document['numops']}": right}
    if not document["start"]:
        parts["exact_match_changed"] = right
    return with_hard(scores, document["numops"]) | parts
