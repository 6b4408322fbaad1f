"""RULER's variable tracking with several chains: which variables have a value, as an exact set.

    --metadata chains=3 noise=0.5 order=shuffled examples=200    texts of `chacal ruler`
    --metadata ruler=FILE                                        or RULER's own

RULER's score is the share of the variables that the answer names. One that names all variables of
the text has the best there is, so that an exact set counts here, and RULER's is `recall`.
"""

import re
from math import comb
from typing import Any

from chacal.eval.documents import dataset, some, told
from chacal.tasks.ruler import Question, Ruler, read_questions, recall

EXAMPLES = 500
"""Texts, unless `--metadata examples=...` says otherwise; as many as RULER has."""
SHOWN = 20
"""Texts from which examples are drawn for `--num_fewshot`; of the split for training."""

_GIVEN = re.compile(r"\bVAR (\w+) = (\S+)")


def documents(**metadata: Any) -> Any:
    """What the harness asks: generated texts, all with as many hops as `hops` says."""
    names = ("hops", "chains", "order", "noise")
    task = Ruler(curriculum_steps=0, **_pick(metadata, names, min_hops="hops"))
    seed, count = metadata.get("seed", 0), metadata.get("examples", EXAMPLES)
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"examples={count!r}: expected a number from 1 on")
    return dataset(
        test=[_document(question) for question in task.questions("test", seed, 0, count)],
        fewshot=[_document(question) for question in task.questions("train", seed, 0, SHOWN)],
    )


def _pick(metadata: dict[str, Any], names: tuple[str, ...], **also: str) -> dict[str, Any]:
    picked = {name: metadata[name] for name in names if name in metadata}
    return picked | {name: picked[source] for name, source in also.items() if source in picked}


def from_file(**metadata: Any) -> Any:
    """The same of a file in RULER's format."""
    path = told(metadata, "ruler", "a JSONL file of RULER's variable tracking")
    return dataset(test=[_document(q) for q in some(read_questions(path), metadata)])


def _document(question: Question) -> dict[str, Any]:
    text, prefix, names = question
    given = _GIVEN.findall(text)
    variables = {name for name, _ in given}
    # who has the value that the question names, without a chain to follow
    first = {name for name, value in given if value.isdigit() and name in names}
    wanted, among = len(names), max(len(variables), len(names))
    return {
        "text": text,
        "prefix": prefix.strip(),
        "names": list(names),
        "answer": " ".join(names),
        "chance": 1 / comb(among, wanted),
        "chance_recall": wanted / among,
        "all": float(variables == set(names)),
        "all_recall": 1.0,
        "start": float(first == set(names)),
        "start_recall": len(first) / wanted,
    }


BASELINES = ("chance", "all", "start")


def score(document: dict[str, Any], answers: list[str]) -> dict[str, float]:
    """Of one answer: the exact set and RULER's recall, also of what needs no understanding.

    "chance" draws as many of the text's variables as are wanted, whose number the question tells;
    "all" names all, "start" only the one that is given the value itself.
    """
    answer = answers[0].strip().partition("\n")[0]
    said = set(re.findall(r"\w+", answer)) - {"VAR", "and"}
    return {
        "exact_match": float(said == set(document["names"])),
        "recall": recall(answer, document["names"]),
        **{name: document[name] for kind in BASELINES for name in (kind, f"{kind}_recall")},
    }
