"""Which stores a folder holds, told by their files alone: asked at each opening, also of backends that are not used."""

from __future__ import annotations

from pathlib import Path


def local_json(folder: Path) -> bool:
    """Does the folder hold a store of the backend `local_json`?"""
    return any(folder.glob("memory-*.json"))
