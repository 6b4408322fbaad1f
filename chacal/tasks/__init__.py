"""Tasks: examples, targets and metrics, each from one frozen configuration."""

from chacal.tasks.base import IGNORE, SPLITS, Batch, Task, Totals, option
from chacal.tasks.borders import CountedBoxes, PaddedBoxes
from chacal.tasks.boxes import Boxes
from chacal.tasks.boxes_files import BoxesFiles
from chacal.tasks.boxes_forms import BoxesForms
from chacal.tasks.boxes_text import BoxesText
from chacal.tasks.chains import Chains, Properties
from chacal.tasks.code import Code
from chacal.tasks.labelled import Labelled
from chacal.tasks.language import Language
from chacal.tasks.noise import Noise
from chacal.tasks.phrases import Phrases
from chacal.tasks.ruler import Ruler
from chacal.tasks.scrolls import Scrolls
from chacal.tasks.stories import (
    OBJECTS,
    Sentence,
    needed_positions,
    parse_answer,
    parse_story,
    simulate,
)
from chacal.tasks.variables import Variables
from chacal.tasks.variables_symbols import VariableSymbols

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Chains, Properties, Boxes, PaddedBoxes, BoxesText, BoxesFiles, BoxesForms, Noise, Code,
        Labelled, Language, Scrolls, Variables, Ruler, VariableSymbols,
    )
}  # fmt: skip
"""Every task by its name."""

__all__ = [
    "IGNORE",
    "OBJECTS",
    "SPLITS",
    "TASKS",
    "Batch",
    "Boxes",
    "BoxesFiles",
    "BoxesForms",
    "BoxesText",
    "Chains",
    "Code",
    "CountedBoxes",
    "Labelled",
    "Language",
    "Noise",
    "PaddedBoxes",
    "Phrases",
    "Properties",
    "Ruler",
    "Scrolls",
    "Sentence",
    "Task",
    "Totals",
    "VariableSymbols",
    "Variables",
    "needed_positions",
    "option",
    "parse_answer",
    "parse_story",
    "simulate",
]
