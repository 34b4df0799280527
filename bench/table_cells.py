"""Figures of a row as a table has them."""

from collections.abc import Mapping
from typing import Any

Columns = Mapping[str, tuple[str, str]]  # title: figure and how it is written


def cells(row: Mapping[str, Any], columns: Columns) -> list[str]:
    """A cell for each column; empty where the row has no such figure, or None."""
    return [
        form.format(row[name]) if row.get(name) is not None else ""
        for name, form in columns.values()
    ]
