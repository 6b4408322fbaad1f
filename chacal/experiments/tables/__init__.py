"""One file for each table of the paper, and for each question that its text leaves open.

A file here that does not begin with an underscore holds one table, `TABLE`: a new table is a new
file, and nothing else. Its name is the paper's label for it (`tab:boxes`).
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from chacal.experiments.table import Table


def _all_tables() -> dict[str, Table[Any]]:
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    files = [
        importlib.import_module(f"{__name__}.{name}") for name in names if not name.startswith("_")
    ]
    tables: list[Table[Any]] = sorted((file.TABLE for file in files), key=lambda t: t.place)
    return {table.name: table for table in tables}


TABLES: dict[str, Table[Any]] = _all_tables()
"""Every table that `chacal reproduce` can make, in the order of the report."""
