"""The filter of system calls and the rules for files, without a process: a small interpreter runs the filter."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("only Linux has these restrictions", allow_module_level=True)
from agentformer.readers.sandbox import linux

ALLOW, KILL, REFUSE, UNKNOWN = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
X86, ARM = 0xC000003E, 0xC00000B7


def answer(program: bytes, machine: int, number: int, argument: int = 0) -> int:
    """Run a filter as the kernel does, and return its answer to a system call."""
    data = struct.pack("=IIQQ", number, machine, 0, argument)
    loaded = at = 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x20:  # load
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:  # return
            return int(value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += yes if holds else no


@pytest.mark.parametrize("starts_programs", [False, True])
def test_the_filter_answers_each_call(starts_programs: bool) -> None:
    start, pid = (ALLOW if starts_programs else REFUSE), os.getpid()
    calls: list[tuple[int | None, int | None, int, int]] = [  # number on x86-64, on arm64, first argument, answer
        (0, 63, 0, ALLOW),  # read
        (1, 64, 0, ALLOW),  # write
        (257, 56, 0, ALLOW),  # openat
        (9, 222, 0, ALLOW),  # mmap
        (231, 94, 0, ALLOW),  # exit_group
        (40, 71, 0, ALLOW),  # sendfile, beside socket
        (41, 198, 2, REFUSE),  # socket
        (42, 203, 0, REFUSE),  # connect
        (425, 425, 0, REFUSE),  # io_uring_setup
        (101, 117, 0, REFUSE),  # ptrace
        (90, 52, 0, REFUSE),  # chmod, fchmod
        (165, 40, 0, REFUSE),  # mount
        (167, 224, 0, REFUSE),  # swapon, the last of the list
        (435, 435, 0, UNKNOWN),  # clone3
        (59, 221, 0, start),  # execve
        (322, 281, 0, start),  # execveat
        (57, None, 0, start),  # fork
        (58, None, 0, start),  # vfork
        (60, 93, 0, ALLOW),  # exit
        (56, 220, 17, start),  # clone of a process
        (56, 220, 0x10000, ALLOW),  # clone of a thread
        (56, 220, 0x10000 | 0x10000000, REFUSE),  # clone into a new namespace
        (62, 129, pid, ALLOW),  # kill
        (62, 129, pid + 1, REFUSE),
        (234, 131, pid, ALLOW),  # tgkill
        (234, 131, pid + 1, REFUSE),
        (302, 261, 0, ALLOW),  # prlimit of this process
        (302, 261, 1, REFUSE),
        (157, 167, 1, REFUSE),  # prctl: the signal when the parent ends
        (157, 167, 38, ALLOW),
        (0x40000000, None, 0, REFUSE),  # the second table of x86-64
    ]
    for column, machine in ((0, X86), (1, ARM)):
        program = b"".join(linux._filter(column, machine, starts_programs))
        for call in calls:
            if (number := call[column]) is not None:
                assert answer(program, machine, number, call[2]) == call[3], (column, call)
        assert answer(program, machine ^ 1, 0) == KILL
    assert {"x86_64": (0, X86), "aarch64": (1, ARM)} == linux._MACHINES


FILE, FOLDER = Path(__file__), Path(__file__).parent


@pytest.mark.parametrize(
    ("version", "handled", "size"),
    [(1, 13, 8), (2, 14, 8), (3, 15, 8), (4, 15, 8), (5, 16, 8), (6, 16, 24), (7, 16, 24)],
)
def test_each_version_of_landlock_gets_the_rights_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, handled: int, size: int
) -> None:
    calls: list[tuple[Any, ...]] = []
    rules: list[tuple[Path, int]] = []
    flags: list[int] = []

    def call(number: int, *arguments: Any) -> int:
        if number == 444 and arguments == (None, 0, 1):
            return version
        if number == 445:
            _, kind, attribute, flag = arguments
            rights, handle = struct.unpack("=Qi", attribute)
            rules.append((Path(f"/proc/self/fd/{handle}").readlink(), rights))
            assert (kind, flag, len(attribute)) == (1, 0, 12)
            return 0
        calls.append((number, *arguments))
        return os.open(os.devnull, os.O_RDONLY) if number == 444 else 0

    def prctl(option: int, *values: Any) -> int:
        flags.extend([option, *(value.value for value in values)])
        return 0

    monkeypatch.setattr(linux, "_call", call)
    library = SimpleNamespace(CDLL=lambda name: SimpleNamespace(prctl=prctl), c_ulong=ctypes.c_ulong)
    monkeypatch.setattr(linux, "ctypes", library)
    assert linux.confine_files([FILE, FOLDER, tmp_path / "missing"], [tmp_path, FILE], [FOLDER])
    every = (1 << handled) - 1
    (create, restrict) = calls
    assert create == (444, struct.pack("=QQQ", every, 0, 3)[:size], size, 0)
    assert restrict[0] == 446 and restrict[2] == 0
    assert flags == [38, 1, 0, 0, 0]
    execute, write, read, listing, truncate, ioctl = 1, 2, 4, 8, 1 << 14, 1 << 15
    assert rules == [
        (FILE, execute | read),
        (FOLDER, execute | read | listing),
        (FOLDER, listing),
        (tmp_path, every),
        (FILE, every & (execute | write | read | truncate | ioctl)),
    ]


def test_a_system_that_refuses_a_restriction_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are the version, the rules, the promise of no new rights, and the restriction."""
    for refused_step, restricted in enumerate((False, False, False, False, True)):
        handles: list[int] = []

        def call(number: int, *arguments: Any, refused_step: int = refused_step, handles: list[int] = handles) -> int:
            if number == 446:
                return -1 if refused_step == 3 else 0
            if arguments[0] is None:
                return 0 if refused_step == 0 else 1
            if refused_step == 1:
                return -1
            handles.append(os.open(os.devnull, os.O_RDONLY))
            return handles[-1]

        def prctl(*values: Any, refused_step: int = refused_step) -> int:
            return -1 if refused_step == 2 else 0

        monkeypatch.setattr(linux, "_call", call)
        library = SimpleNamespace(CDLL=lambda name, prctl=prctl: SimpleNamespace(prctl=prctl), c_ulong=ctypes.c_ulong)
        monkeypatch.setattr(linux, "ctypes", library)
        assert linux.confine_files([], []) is restricted
        for handle in handles:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(handle)
