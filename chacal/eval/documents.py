"""Documents for the harness, and what its `--metadata` may say of them."""

from typing import Any

from chacal._extras import install
from chacal.tasks.stored import sample


def told(metadata: dict[str, Any], key: str, what: str) -> str:
    """The path that `--metadata KEY=...` gives; ValueError says how where there is none."""
    if key not in metadata:
        raise ValueError(f"no {key} was given; expected --metadata {key}={what}")
    return str(metadata[key])


def some(rows: list[Any], metadata: dict[str, Any]) -> list[Any]:
    """A fixed sample of as many rows as `--metadata examples=...` says; all unless it does."""
    wanted = metadata.get("examples", "all")
    if wanted == "all":
        return rows
    if not isinstance(wanted, int) or wanted < 1:
        raise ValueError(f"examples={wanted!r}: expected a number from 1 on, or all")
    return [rows[i] for i in sample("test", len(rows), min(wanted, len(rows)))]


def dataset(**splits: list[dict[str, Any]]) -> Any:
    """Rows of every split in the form that the harness takes."""
    try:
        import datasets
    except ImportError:
        raise ImportError(f"tasks of chacal.eval need datasets: {install('eval')}") from None
    return datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}
    )
