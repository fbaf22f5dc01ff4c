"""The names of the private files of a memory home, and the check whether a folder is one."""

from __future__ import annotations

from pathlib import Path

FORMAT = "agentformer-markdown-1"
PRIVATE = ".agentformer"  # the folder of the private files
MARKER = "home.json"


def is_home(folder: Path) -> bool:
    """Return whether the folder has the marker of a memory home."""
    return "\0" not in str(folder) and (folder / PRIVATE / MARKER).is_file()
