"""Functions that clean, split and analyze texts."""

from __future__ import annotations

from pathlib import Path


def data_lines(file: Path) -> list[str]:
    """Return the lines of a data file, without comments and blank lines."""
    return [line for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")]
