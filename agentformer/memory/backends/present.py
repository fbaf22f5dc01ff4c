"""Checks for a store in a folder by its files alone, without an import of the backend."""

from __future__ import annotations

from pathlib import Path


def local_json(folder: Path) -> bool:
    """Return whether the folder holds a store of the backend `local_json`."""
    return any(folder.glob("memory-*.json"))
