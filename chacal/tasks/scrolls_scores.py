"""How SCROLLS scores an answer: ROUGE for summaries, F1 for answers, exact match for choices.

Each is in per cent, and of several references the best counts. ROUGE is of the package
`rouge_score`, without a stemmer, as F-measures; a summary's is the geometric mean of ROUGE-1,
-2 and -L *after* each was averaged over all examples. F1 and exact match compare words after
SQuAD's normalisation: lower case, no punctuation, no articles.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from chacal._extras import install

ROUGE = ("rouge1", "rouge2", "rougeL")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> list[str]:
    """A text's words, normalised."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def f1(answer: str, references: Sequence[str]) -> float:
    """Overlap of words, as the harmonic mean of precision and recall, with the best reference."""
    return max(_f1(words(answer), words(reference)) for reference in references)


def exact_match(answer: str, references: Sequence[str]) -> float:
    """100 if the words are those of a reference, in order, else 0."""
    return 100.0 * any(words(answer) == words(reference) for reference in references)


def rouge(answer: str, references: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L, each with the reference that is best for it."""
    scores = [rouge_scorer().score(reference, answer) for reference in references]
    return {kind: 100 * max(score[kind].fmeasure for score in scores) for kind in ROUGE}


def geometric_mean(values: Sequence[float]) -> float:
    """0 where a value is."""
    return math.prod(values) ** (1 / len(values))


def _f1(answer: list[str], reference: list[str]) -> float:
    same = sum((Counter(answer) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(answer), same / len(reference)
    return 100 * 2 * precision * recall / (precision + recall)


@lru_cache(maxsize=1)
def rouge_scorer() -> Any:
    """The package's scorer, or what to install: asked for before hours of training are spent."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ValueError(
            f"ROUGE is computed by the package 'rouge_score', which is missing: {install('data')}"
        ) from None
    return RougeScorer(list(ROUGE), use_stemmer=False)
