"""The machine of the measurement."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

from bench.speed.timing import Values

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
_LIBRARIES = ("torch", "sentence-transformers", "openvino", "onnxruntime", "faiss-cpu", "tantivy", "numpy")


def machine() -> Values:
    """Return processor, usable cores, memory, and versions."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = set(told.get("flags", "").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": told.get("model name", platform.processor()),
        "cores": cores,
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "has": [flag for flag in _FLAGS if flag in flags],
        "lacks": [flag for flag in _FLAGS if flag not in flags],
        "versions": {name: version for name in _LIBRARIES if (version := _version(name))},
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def load() -> float:
    """Return the load average of the last minute. Above the number of cores, figures are doubtful."""
    return os.getloadavg()[0]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
