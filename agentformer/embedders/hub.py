"""The cache of the model hub on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


def local_folder(name: str, publisher: str = "sentence-transformers") -> Path | None:
    """Return the folder of a model on this machine. If `name` is a folder, this folder is returned; otherwise, the
    folder of the model in the cache of the model hub. Return None if the model is not on this machine. `publisher` is
    added to a name that has no publisher."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    repository = name if "/" in name else f"{publisher}/{name}"
    if not _REPOSITORY.fullmatch(repository):
        return None
    cached = _hub_cache() / f"models--{repository.replace('/', '--')}"
    try:
        revision = (cached / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    snapshot = cached / "snapshots" / revision
    return snapshot if revision and (snapshot / "config.json").exists() else None


def _hub_cache() -> Path:
    """Return the folder in which the client of the model hub keeps its files, as its environment variables say."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(cache or f"{home}/hub").expanduser()
