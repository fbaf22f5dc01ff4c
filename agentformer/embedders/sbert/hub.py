"""The model hub: what its cache on this machine holds, and whether it answers."""

from __future__ import annotations

from pathlib import Path

_HUB_SECONDS = 3.0  # a hub that is there answers sooner, and a start must not wait long for one that is not


def local_folder(name: str) -> Path | None:
    """Where a model lies on this machine: the folder of this name, or the hub's cached one. None: nowhere."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    for file in ("modules.json", "config.json"):  # a model of plain transformers has the second only
        found = _cached(try_to_load_from_cache, name, file)
        if found:
            return found.parent
    return None


def _cached(look: object, name: str, file: str) -> Path | None:
    assert callable(look)
    try:
        found = look(_repository(name), file)
    except ValueError:  # what is not the name of any repository
        return None
    return Path(found) if isinstance(found, str) else None


def _repository(name: str) -> str:
    return name if "/" in name else f"sentence-transformers/{name}"


def why_unavailable(name: str) -> str:
    """Why a hub model can be neither loaded from the cache nor fetched now, in a few words; "" if it can.

    Asks the hub once, briefly, and only when the model is not cached; `HF_HUB_OFFLINE=1` keeps it from asking.
    """
    try:
        from huggingface_hub import hf_hub_url, try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_OFFLINE
    except ImportError:
        return "sentence-transformers is not installed"
    repository = _repository(name)
    if isinstance(try_to_load_from_cache(repository, "modules.json"), str):
        return ""
    if HF_HUB_OFFLINE:
        return "it is not cached, and HF_HUB_OFFLINE is set"
    import urllib.request  # which brings TLS along

    try:  # one plain request: the hub client itself tries again for a quarter of a minute
        with urllib.request.urlopen(hf_hub_url(repository, "modules.json"), timeout=_HUB_SECONDS):  # noqa: S310
            return ""
    except (OSError, ValueError):
        return "it is not cached, and the model hub does not answer"
