"""OpenVINO without the reports of its use that it sends to its makers whenever it is imported.

Only the part that converts models reports, and only the export needs that part. A host application that imports
OpenVINO itself, before or later, gets it whole: nothing stays blocked in its process.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentformer.embedders.sbert.runtime import needed

TELEMETRY = "openvino_telemetry"  # a package that OpenVINO and NNCF do without where it is missing
_CONVERTER = "openvino.tools"  # OpenVINO's package goes on without it as well
_lock = threading.Lock()


def openvino() -> Any:
    """The package, imported without its converter and without a report. Raises `NotFast` where it is missing or
    broken."""
    with _lock:
        if "openvino" in sys.modules:
            return needed("openvino")  # which waits for another thread that is at it
        with _missing(TELEMETRY, _CONVERTER):
            found = needed("openvino")
        if "convert_model" not in vars(found):
            vars(found).setdefault("__getattr__", _whole)
        return found


def never_report() -> None:
    """For the rest of this process, which must be our own."""
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]


def _whole(name: str) -> Any:
    """What the package would have had: looked up when a host application first asks for it."""
    if name == "convert_model":
        return importlib.import_module("openvino.tools.ovc").convert_model
    raise AttributeError(f"module 'openvino' has no attribute {name!r}")


@contextmanager
def _missing(*names: str) -> Iterator[None]:
    """Packages that are not imported yet seem not to be installed meanwhile."""
    blocked = [name for name in names if name not in sys.modules]
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in blocked:
            sys.modules.pop(name, None)
