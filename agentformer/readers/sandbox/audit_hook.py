"""What Python code of a reader may still do once its parser is loaded: read programs, and run tesseract in its folder.

An audit hook cannot be taken away again. It sees what Python does and not what native code does: that is refused by the
system where it can (`seccomp`, `landlock`).
"""

from __future__ import annotations

import os
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
_CHANGES = ("remove", "mkdir", "rmdir", "chmod", "chown", "truncate", "utime", "setxattr", "removexattr")
# Which arguments name what is changed. Of a symbolic link that is the link alone.
_CHANGING = dict.fromkeys((f"os.{name}" for name in _CHANGES), slice(1)) | {
    "os.rename": slice(2),
    "os.link": slice(2),
    "os.symlink": slice(1, 2),
}


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
            if not all(_within(path, writable) for path in arguments[_CHANGING[event]]):
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
