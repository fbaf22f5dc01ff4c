"""What Python code of a reader may still do once its parser is loaded: read programs, and run tesseract in its folder.

An audit hook cannot be taken away again. It sees what Python does and not what native code does: that is refused by the
system where it can (`seccomp`, `landlock`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = (
    "socket.",
    "ctypes.dlopen",
    "os.system",
    "os.fork",
    "os.exec",
    "os.spawn",
    "os.startfile",
    "pty.",
    "winreg.",
)
_STARTING = frozenset({"subprocess.Popen", "os.posix_spawn"})
_CHANGING = frozenset(
    f"os.{name}" for name in ("remove", "rename", "link", "symlink", "mkdir", "rmdir", "chmod", "chown", "truncate")
)
# What C libraries read when they start: their own places, random numbers, and how many processors there are.
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/alternatives", "/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)


def readable_folders() -> tuple[Path, ...]:
    """Where programs and their data are: Python's modules, the system's libraries, and tesseract with its languages."""
    here = Path(__file__).resolve().parent.parent
    tesseract = shutil.which("tesseract")
    own = [here, sys.prefix, sys.base_prefix, *sys.path, os.environ.get("TESSDATA_PREFIX")]
    found = [Path(tesseract).resolve().parent.parent] if tesseract else []
    return tuple(dict.fromkeys(Path(os.path.realpath(p)) for p in (*own, *found, *_SYSTEM) if p))


def refuse_events(readable: Iterable[Path], folder: str) -> None:
    """From now on, for good: no socket, no library, no program but tesseract, nothing written outside `folder`."""
    writable = (os.path.realpath(folder),) if folder else ()
    places = (*map(str, readable), *writable)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            allowed = writable if isinstance(flags, int) and flags & _WRITING else places
            if not isinstance(path, int) and not _within(path, allowed):
                raise PermissionError(f"a reader may not open {os.fsdecode(path)[:80]!r}")
        elif event in _CHANGING:
            if not _within(arguments[0], writable):
                raise PermissionError(f"a reader may not do this: {event}")
        elif event in _STARTING:
            if not folder or Path(str(arguments[0])).name != "tesseract":
                raise PermissionError("a reader may not start programs")
        elif event.startswith(_REFUSED):
            raise PermissionError(f"a reader may not do this: {event}")

    sys.addaudithook(refuse)


def _within(path: Any, places: Iterable[str]) -> bool:
    if path == os.devnull:
        return True
    try:
        real = os.path.realpath(os.fsdecode(path))
    except (TypeError, ValueError, OSError):
        return False
    return any(real == place or real.startswith(place + os.sep) for place in places)
