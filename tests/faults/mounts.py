"""Disks of a test's own: mounted by a child process in its own mount namespace, so that they end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ALL = os.environ.get("AGENTFORMER_DISK") == "all"  # every size and moment, instead of a sample
_BOUND = 540.0  # seconds that a child may take


@cache
def _prefix() -> tuple[str, ...] | None:
    """What gives a process mounts of its own: as root, or in a user namespace. None where neither is allowed."""
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("mount"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        for prefix in (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")):
            tried = subprocess.run(
                [*prefix, "mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, timeout=60
            )
            if tried.returncode == 0:
                return prefix
    return None


def why_not() -> str:
    """Why no disk can be mounted here; "" where one can."""
    return "" if _prefix() else "this process may not mount a disk, nor make a user namespace in which it may"


def run(script: str | Path, *arguments: object, **environ: str) -> str:
    """Run a file of this folder where it may mount disks. Returns what it printed; fails with what it told of its
    errors. The mounts end with it."""
    done = subprocess.run(
        [*(_prefix() or ()), sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_BOUND,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
    )
    assert done.returncode == 0, f"it ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def apart(scene: Callable[..., None], *arguments: object) -> None:
    """Run a function of a test's module, which gives it `play`, in such a process."""
    run(sys.modules[scene.__module__].__file__ or "", scene.__name__, *arguments)


def play(scenes: Mapping[str, Any]) -> None:
    """What the module of `apart` does as a program."""
    scenes[sys.argv[1]](*sys.argv[2:])


def mount(folder: Path, size: str = "16m", *, files: int = 0) -> None:
    """A small disk in memory, with room for so many files (0: any number)."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size}" + (f",nr_inodes={files}" if files else "")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True, timeout=60)


def remount(folder: Path, mode: str) -> None:
    """`ro` or `rw`."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True, timeout=60)


def unmount(folder: Path) -> None:
    """Take the disk away under whoever has files of it open."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


class Ballast:
    """A file that takes a disk's room away."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / ".ballast"

    def leave(self, room: int) -> None:
        """Fill the disk until `room` bytes are free, in whole pages."""
        self.free()
        state = os.statvfs(self._path.parent)
        size = max(0, state.f_bavail * state.f_frsize - room)
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size) if size else None

    def free(self) -> None:
        self._path.unlink(missing_ok=True)
