"""Small files in the forms of others, which ask that theirs be copied nowhere."""

import importlib.util
import json
import os

import pytest

# nothing here may reach for the network
os.environ["HF_HUB_OFFLINE"] = "1"

collect_ignore_glob = [] if importlib.util.find_spec("lm_eval") else ["test_*.py"]

START = "Box 0 contains the letter, Box 1 {nothing}, Box 2 contains the big book and the key."
MOVE = "Move the big book and the key from Box 2 to Box 1."
BACK = "Move the contents of Box 1 to Box 2."
STORIES = [
    ("", "0", "the letter", 0),
    ("", "1", "nothing", 0),
    (f" {MOVE}", "1", "the big book and the key", 1),
    (f" {MOVE}", "2", "nothing", 1),
    (f" {MOVE} {BACK}", "1", "nothing", 2),
    (f" {MOVE} {BACK} Put the pot into Box 2.", "2", "the big book and the key and the pot", 3),
]
"""What happens, the box that is asked for, what it holds, operations that change it."""


@pytest.fixture(scope="session")
def kim_schuster(tmp_path_factory):
    """Their files for models that are not fine-tuned: what follows "contains" is masked."""
    folder = tmp_path_factory.mktemp("kim_schuster")
    start = START.format(nothing="contains nothing")
    rows = [
        {"sentence_masked": f"{start}{told} Box {box} contains <extra_id_0> .",
         "masked_content": f"<extra_id_0> {content}", "numops": numops}
        for told, box, content, numops in STORIES
    ]  # fmt: skip
    for split in ("dev", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}-t5.jsonl").write_text(lines)
    return folder


@pytest.fixture(scope="session")
def entity_tracking(tmp_path_factory):
    """BabyLM's files: options, of which the first is right."""
    folder = tmp_path_factory.mktemp("entity_tracking")
    start = START.format(nothing="contains nothing")
    others = ["the letter", "nothing", "the big book and the key", "the pot"]
    for split, chosen in (("regular", STORIES[:4]), ("ambiref", STORIES[::2]),
                          ("move_contents", STORIES)):  # fmt: skip
        rows = [
            {"input_prefix": f"{start}{told} Box {box} contains", "numops": numops,
             "options": [f" {o}." for o in [content, *(o for o in others if o != content)]]}
            for told, box, content, numops in chosen
        ]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    return folder
