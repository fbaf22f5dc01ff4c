"""Disks of a test's own: mounted by a child process in its own mount namespace, so that they end with it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import forked

ALL = os.environ.get("FAULTS_DISK") == "all"  # every size and moment, instead of a sample
_BOUND = 540.0  # seconds that a child may take
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # of unshare(2)
_OWN = "from tests.faults import mounts\nmounts.own_mounts()"
_FORK: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else None)


@cache
def why_not() -> str:
    """Why no disk can be mounted here; "" where one can."""
    if sys.platform == "linux" and shutil.which("mount"):
        with tempfile.TemporaryDirectory() as folder:
            mounted = f"mounts.mount(mounts.Path({folder!r}))"
            if not forked.ended(forked.program(f"{_OWN}\n{mounted}", imports=())).returncode:
                return ""
    return "this process may not mount a disk, nor make a user namespace in which it may"


def own_mounts() -> None:
    """Give this process mounts of its own, which end with it: as root, or in a user namespace."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS):
        if libc.unshare(_NEW_MOUNTS | _NEW_USER):
            raise OSError(ctypes.get_errno(), "this process may have no mounts of its own")
        for name, value in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(value)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, timeout=60)


def run(script: str | Path, *arguments: object, **environ: str) -> str:
    """Run a file of this folder where it may mount disks. Returns what it printed; fails with what it told of its
    errors. The mounts end with it."""
    scene = forked.script(Path(script), *arguments, before=_OWN, imports=forked.SERVE + forked.STORE, env=environ)
    done = forked.ended(scene, _BOUND)
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


def view_of(disk: Path, view: Path) -> None:
    """Mount a disk a second time, for reading."""
    view.mkdir()
    subprocess.run(["mount", "--bind", str(disk), str(view)], check=True, timeout=60)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True, timeout=60)


def beside(work: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    """Start a fork of this process that does some work, and return it with a pipe to it, which is the last argument of
    the work. No memory may be open yet."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


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
