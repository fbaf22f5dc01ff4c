"""Restrict a reader process on Linux: Landlock limits the access to files, and seccomp limits the system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # numbers of the system calls, equal on all machines
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15  # rights that apply to a file
_ALL_SIGNALS_AND_SOCKETS = 3  # refuses signals to other processes, and their abstract sockets


def confine_files(readable: Iterable[Path], writable: Iterable[Path], listed: Iterable[Path] = ()) -> bool:
    """Restrict this process and its children to the given files and folders (Landlock). The restriction cannot be
    removed. Files in `readable` can be read and run. Files in `writable` can be changed, too. In the `listed` folders,
    only the names of files can be read. Open files stay usable. Return False if the system does not support
    Landlock."""
    version = _call(_CREATE, None, 0, _VERSION)
    if version < 1:
        return False
    handled = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1  # all file rights that this version knows
    scoped = _ALL_SIGNALS_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)[: 24 if version >= 6 else 8]
    rules = _call(_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for paths, rights in ((readable, _READ), (listed, _READ_DIR), (writable, handled)):
            for path in paths:
                _allow(rules, path, rights)
        if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, *[ctypes.c_ulong(n) for n in (1, 0, 0, 0)]):
            return False
        return _call(_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, rights: int) -> None:
    """Add a file or folder to the rules. A missing path is skipped on purpose: it needs no rule."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _FILES  # Linux refuses a rule that gives a file the rights of a folder
        _call(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call by its number. Return its result, or -1 if the system refuses or does not know the call."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return int(call(ctypes.c_long(number), *words))


_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # offsets in the kernel's `struct seccomp_data`
_X32 = 0x40000000  # a second table of calls on x86-64
_NEW_NAMESPACES, _NEW_THREAD = 0x7E020000, 0x00010000  # CLONE_NEW*, CLONE_THREAD
_PR_SET_PDEATHSIG = 1

# Refused system calls: name, number on x86-64 and on arm64 (-1: does not exist). A list of allowed calls would break
# with each new C library.
_TABLE = """
The network, and io_uring, which could use the network without further system calls:
    socket 41 198, socketpair 53 199, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
    sendto 44 206, sendmsg 46 211, sendmmsg 307 269,
    io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427,
Other processes: inspecting and signalling them, and leaving the group that is ended with the reader:
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, pidfd_open 434 434,
    pidfd_getfd 438 438, pidfd_send_signal 424 424, tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
    setsid 112 157, setpgid 109 154, setpriority 141 140, ioprio_set 251 30, sched_setscheduler 144 119,
    sched_setparam 142 118, sched_setattr 314 274, sched_setaffinity 203 122,
Shared memory and messages:
    shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semctl 66 191, semop 65 193, semtimedop 220 192,
    msgget 68 186, msgctl 71 187, msgsnd 69 189, msgrcv 70 188, mq_open 240 180, mq_unlink 241 181,
Names, rights, times and length of files, which Landlock does not cover in all versions:
    truncate 76 45, utimensat 280 88, utime 132 -1, utimes 235 -1, futimesat 261 -1, removexattr 197 14,
    lremovexattr 198 15, fremovexattr 199 16, setxattrat 463 463, removexattrat 466 466, file_setattr 469 469,
    chmod 90 -1, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -1, fchown 93 55, lchown 94 -1,
    fchownat 260 54, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, mknod 133 -1, mknodat 259 33,
    open_by_handle_at 304 265,
The system:
    mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, open_tree 428 428,
    move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442,
    bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, personality 135 92, keyctl 250 219, add_key 248 217,
    request_key 249 218, kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273,
    reboot 169 142, settimeofday 164 170, clock_settime 227 112, sethostname 170 161, swapon 167 224
"""
_REFUSED = {name: (int(x86), int(arm)) for name, x86, arm in re.findall(r"(\w+) (-?\d+) (-?\d+)", _TABLE)}
_STARTS = {"execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1)}  # tesseract needs these
_CLONE, _CLONE3 = (56, 220), (435, 435)
_KILL_CALL, _TGKILL, _PRLIMIT, _PRCTL = (62, 129), (234, 131), (302, 261), (157, 167)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_calls(*, starts_programs: bool) -> bool:
    """Refuse dangerous system calls of this process and its children (seccomp). The restriction cannot be removed. If
    `starts_programs` is true, the process may start other programs, such as tesseract.

    A refused call fails with EPERM. Return False if the system does not support seccomp.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.maxsize < 1 << 32:  # a 32-bit program has other call numbers
        return False
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    code = b"".join(_filter(*machine, starts_programs))
    program = _Program(len(code) // 8, code)
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program), 0, 0) == 0)


def _filter(column: int, machine: int, starts_programs: bool) -> Iterator[bytes]:
    """Yield the instructions of the filter: first the architecture is checked, then calls are refused by their number,
    then some by their first argument, and the rest is allowed. The last two numbers of a comparison are how many
    instructions are skipped if it is true, and if it is false. `column` is the machine's column in the tables."""
    yield _step(_LOAD, _MACHINE_AT)
    yield _step(_JUMP_EQUAL, machine, 1, 0)
    yield _step(_RETURN, _KILL)  # calls of another architecture have other numbers
    yield _step(_LOAD, _NUMBER_AT)
    yield _step(_JUMP_AT_LEAST, _X32, 0, 1)
    yield _step(_RETURN, _EPERM)
    refused = _REFUSED if starts_programs else _REFUSED | _STARTS
    answers = [(numbers[column], _EPERM) for numbers in refused.values() if numbers[column] >= 0]
    # The flags of clone3 are invisible to the filter; C libraries fall back to `clone`.
    for number, answer in (*answers, (_CLONE3[column], _ENOSYS)):
        yield _step(_JUMP_EQUAL, number, 0, 1)
        yield _step(_RETURN, answer)
    if starts_programs:
        yield from _unless(_CLONE[column], _step(_JUMP_BITS, _NEW_NAMESPACES, 1, 0))
    else:  # only threads: a process would not end with the reader
        yield from _unless(
            _CLONE[column], _step(_JUMP_BITS, _NEW_NAMESPACES, 2, 0), _step(_JUMP_BITS, _NEW_THREAD, 0, 1)
        )
    for call in (_KILL_CALL, _TGKILL):  # abort() sends a signal to its own process
        yield from _unless(call[column], _step(_JUMP_EQUAL, os.getpid(), 0, 1))
    yield from _unless(_PRLIMIT[column], _step(_JUMP_EQUAL, 0, 0, 1))  # only for its own process
    # This call makes the process end with its parent.
    yield from _unless(_PRCTL[column], _step(_JUMP_EQUAL, _PR_SET_PDEATHSIG, 1, 0))
    yield _step(_RETURN, _ALLOW)


def _unless(number: int, *tests: bytes) -> Iterator[bytes]:
    """Yield filter instructions that allow or refuse the system call `number`, depending on its first argument. The
    last two instructions end the filter: the first of them allows the call, and the second refuses it. The instructions
    `tests` compare the argument. Each comparison must jump to the first or to the second of these two, or continue with
    the next comparison."""
    yield _step(_JUMP_EQUAL, number, 0, 3 + len(tests))
    yield _step(_LOAD, _FIRST_ARGUMENT_AT)
    yield from tests
    yield _step(_RETURN, _ALLOW)
    yield _step(_RETURN, _EPERM)


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """Return one instruction of the seccomp filter. A comparison that is true skips the next `yes` instructions. A
    comparison that is false skips the next `no` instructions."""
    return struct.pack("=HBBI", code, yes, no, value)
