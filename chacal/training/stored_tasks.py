"""Tasks as plain data and back, also under the names and fields that they had in earlier runs.

`language` was three tasks. What is stored is read as the task of today:

    text      train_file, valid_file and test_file of one's own
    manual    the text of help(), with a test part of its own
    lm        any source; its test is its valid text

A run's folder is named by its configuration (`cells.run_id`), and the runs of `manual` and `lm` are
stored under such names. Their configuration of today has other words for the same run, so the name
is made from the words of then: `former_form`. No table ever had a run of `text`, so none of its
folders has to be found.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from chacal._echo import shown
from chacal._plain import from_plain, to_plain
from chacal.tasks import TASKS, Language, Task
from chacal.tasks.help_topics import HELP
from chacal.tasks.language import VALID


@dataclass(frozen=True, kw_only=True)
class _Text:
    name: ClassVar[str] = "text"
    train_file: str
    valid_file: str
    test_file: str | None
    tokenizer: str | None
    window: int

    def today(self) -> Language:
        return Language(
            train=self.train_file,
            valid=self.valid_file,
            test=self.test_file,
            tokenizer=self.tokenizer,
            window=self.window,
        )


@dataclass(frozen=True, kw_only=True)
class _Manual:
    name: ClassVar[str] = "manual"
    window: int

    def today(self) -> Language:
        return Language(test=HELP, window=self.window)


@dataclass(frozen=True, kw_only=True)
class _Lm:
    name: ClassVar[str] = "lm"
    train: str
    valid: str
    tokenizer: str | None
    window: int
    eval_tokens: int

    def today(self) -> Language:
        return Language(test=VALID, **to_plain(self))


FORMER: dict[str, type[_Text] | type[_Manual] | type[_Lm]] = {
    kind.name: kind for kind in (_Text, _Manual, _Lm)
}
"""What is read and no longer written, by its name."""


def write_task(task: Task) -> dict[str, Any]:
    """Plain data that `read_task` takes back."""
    return {"name": task.name, **to_plain(task)}


def read_task(data: Any) -> Task:
    """The task that plain data describes, or a ValueError that names what is wrong."""
    if not isinstance(data, dict):
        raise ValueError(f"task is {shown(data)}; expected an object")
    fields = {key: value for key, value in data.items() if key != "name"}
    name = data.get("name")
    if isinstance(name, str) and name in FORMER:
        return from_plain(FORMER[name], fields, "task").today()
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task.name is {shown(name)}; expected one of {', '.join(TASKS)}")
    return from_plain(TASKS[name], fields, "task")


def former_form(task: Task) -> dict[str, Any]:
    """`write_task`, in the words of `manual` or `lm` where these could say the same."""
    if isinstance(task, Language):
        if task == _Manual(window=task.window).today():
            return {"name": _Manual.name, "window": task.window}
        if task.test == VALID:
            own = {key: value for key, value in to_plain(task).items() if key != "test"}
            return {"name": _Lm.name, **own}
    return write_task(task)
