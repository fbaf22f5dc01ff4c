"""Originals of documents, copied byte by byte and held against the name that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentformer.archive.folders import written_file
from agentformer.archive.layout import BLOCK
from agentformer.rag.documents import Originals


def copied(originals: Originals, digest: str, target: Path) -> dict[str, Any] | None:
    """Copy an original into a new file, and tell its bytes and SHA-256; None where it is not there, or not what its
    name says. Raises `OSError` where it cannot be written."""
    try:
        source = originals.path(digest).open("rb")
    except OSError:
        return None
    with source, written_file(target) as file:
        while block := source.read(BLOCK):
            file.write(block)
    if file.told["sha256"] != digest:
        target.unlink()
        return None
    return file.told
