"""Where an optimisation keeps what it makes: beside it may lie what is somebody's own."""

from __future__ import annotations

from pathlib import Path

OWN = "agentformer-optimize"


def own_folder(work: Path) -> Path:
    """The folder in `work` that nothing but an optimisation writes to; outside of it nothing is changed or deleted."""
    return work / OWN
