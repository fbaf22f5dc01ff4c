"""Which runtime a model gets: the fast one where it can be had and is the same model, else torch."""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path

from agentformer.embedders.sbert.cache import ExportCache
from agentformer.embedders.sbert.exporting import export_apart
from agentformer.embedders.sbert.hub import local_folder
from agentformer.embedders.sbert.openvino_runtime import OpenVinoRuntime
from agentformer.embedders.sbert.processor import may_have_accelerator
from agentformer.embedders.sbert.quiet import openvino
from agentformer.embedders.sbert.runtime import BadExport, NotFast, Runtime, needed
from agentformer.embedders.sbert.torch_runtime import TorchRuntime
from agentformer.errors import EmbedderUnavailable, MissingExtra

log = logging.getLogger("agentformer")

INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model, and how it may be computed."""

    model: str  # a hub name or a folder
    name: str  # of the model, for people
    cache_dir: Path
    precision: str = ""  # "" for that of the model itself, or "int8"
    runtime: str = "auto"
    device: str = ""
    local_only: bool = False


def open_runtime(wanted: Wanted) -> Runtime:
    """Raises `EmbedderUnavailable`, and `MissingExtra` where the fast runtime is asked for and not installed."""
    if wanted.precision:
        return _int8(wanted)
    if not _chosen(wanted):
        return _torch(wanted)
    folder = local_folder(wanted.model)
    if folder is None:  # torch fetches it; now that it is here, it can be exported
        torch = _torch(wanted)
        folder = local_folder(wanted.model)
        if folder is None:
            return torch
    try:
        return _fast(wanted, folder)
    except NotFast as reason:
        _warn(f"{wanted.name} runs on torch, and not on the faster OpenVINO: {reason}")
        return _torch(wanted)


def _int8(wanted: Wanted) -> Runtime:
    """Nothing else gives the vectors of this space, so nothing takes its place."""
    if wanted.runtime == "torch":
        raise EmbedderUnavailable(f"{wanted.name} in int8 needs the setting runtime=openvino, or auto")
    _demand_installed()
    folder = local_folder(wanted.model)
    if folder is None:
        _torch(wanted)
        folder = local_folder(wanted.model)
    if folder is None:
        raise EmbedderUnavailable(f"the files of {wanted.name} are not found on this machine; give their folder")
    try:
        return _fast(wanted, folder)
    except NotFast as reason:
        raise EmbedderUnavailable(f"{wanted.name} cannot be used in int8: {reason}") from reason


def _chosen(wanted: Wanted) -> bool:
    """Whether the fast runtime is to be tried."""
    if wanted.runtime == "openvino":
        _demand_installed()
        return True
    on_processor = wanted.device == "cpu" or not (wanted.device or may_have_accelerator())
    return wanted.runtime == "auto" and on_processor and _installed()


def _fast(wanted: Wanted, folder: Path) -> Runtime:
    """From the cache, or exported into it. An export that is no good is made once more."""
    openvino()  # what cannot be imported says nothing of an export, so that is found out first
    needed("tokenizers")
    cache = ExportCache(wanted.cache_dir)

    def make(target: Path) -> None:
        kind = "int8, which takes a few minutes" if wanted.precision else "OpenVINO, which takes about a minute"
        log.warning("%s is prepared for %s, once", wanted.name, kind)
        export_apart(folder, target, wanted.precision)

    try:
        return OpenVinoRuntime(cache.place(folder, wanted.precision, make), wanted.precision)
    except BadExport:
        place = cache.place(folder, wanted.precision, make, anew=True)
    try:
        return OpenVinoRuntime(place, wanted.precision)
    except BadExport as error:
        cache.refuse(folder, wanted.precision, str(error))
        raise


def _torch(wanted: Wanted) -> TorchRuntime:
    return TorchRuntime(wanted.model, local_only=wanted.local_only, device=wanted.device)


def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("openvino", "tokenizers"))


def _demand_installed() -> None:
    if not _installed():
        raise MissingExtra("fast", "the runtime openvino")


@functools.cache
def _warn(message: str) -> None:
    """Once for a process."""
    log.warning("%s", message)
