"""Files that a reader never opens, refused by Linux itself (Landlock): it reads programs and writes into one folder."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every machine
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15  # the rights that a rule about a file may name
_ALL_SIGNALS_AND_SOCKETS = 3  # no signal to a process outside, no abstract socket of one


def confine_files(readable: Iterable[Path], writable: Iterable[Path], listed: Iterable[Path] = ()) -> bool:
    """Refuse this process, and all that it starts, every other file and folder, for good; False where this system
    cannot. What is open already stays so. Of folders that are `listed`, names can be read and nothing else."""
    version = _call(_CREATE, None, 0, _VERSION)
    if version < 1:
        return False
    handled = _rights(version)
    scoped = _ALL_SIGNALS_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)[: 24 if version >= 6 else 8]
    rules = _call(_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow(rules, path, _READ)
        for path in listed:
            _allow(rules, path, _READ_FOLDER)
        for path in writable:
            _allow(rules, path, handled)
        if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, *[ctypes.c_ulong(n) for n in (1, 0, 0, 0)]):
            return False
        return _call(_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _rights(version: int) -> int:
    """All rights over files that this version of Landlock knows."""
    known = 13 if version == 1 else 14 if version == 2 else 15 if version < 5 else 16
    return (1 << known) - 1


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        there = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = rights if path.is_dir() else rights & _FILES
        _call(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", rights, there), 0)
    finally:
        os.close(there)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """A system call; -1 where it is refused or not known."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(call(ctypes.c_long(number), *words))
