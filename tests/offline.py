"""Runs commands of `agentformer` one after another in a process that may open no socket but those within this machine.

    python tests/offline.py FILE

FILE holds a JSON list of command lines. Each attempt to reach another machine, or a port of this one, is told on
standard error and refused. Where the system can, a filter of its calls ends whichever process asks it for such a
socket; children inherit it, also those that know nothing of Python's hooks.
"""

from __future__ import annotations

import ctypes
import json
import platform
import struct
import sys
from pathlib import Path
from typing import Any

REFUSED = "a socket was asked for"
_RESOLVING = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}
_SENDING = {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "urllib.Request"}

_AF_UNIX = 1
_SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # the architecture's number, and the call's
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: a word of the call, a comparison, an end
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny_sockets() -> bool:
    """For this process and all that it starts. Whether the system does so too, and not Python alone."""
    sys.addaudithook(_refuse)
    return sys.platform == "linux" and platform.machine() in _SOCKET and _filtered()


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _RESOLVING or (event in _SENDING and getattr(arguments[0], "family", None) != _AF_UNIX):
        print(REFUSED, event, str(arguments[1:])[:200], file=sys.stderr, flush=True)
        raise PermissionError(f"{REFUSED}: {event}")


def _filtered() -> bool:
    """Where the kernel looks at each call: one for a socket of another family ends the process."""
    architecture, number = _SOCKET[platform.machine()]
    steps = (
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 0, 4, architecture),
        (_LOAD, 0, 0, 0),  # the call
        (_EQUAL, 0, 2, number),
        (_LOAD, 0, 0, 16),  # its first argument
        (_EQUAL, 0, 1, _AF_UNIX),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _KILL),
    )
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    call = ctypes.CDLL(None, use_errno=True).prctl
    call.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    program = _Program(len(steps), code)
    if call(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    return bool(call(_SET_SECCOMP, _FILTER, ctypes.addressof(program), 0, 0) == 0)


def main() -> None:
    lines = json.loads(Path(sys.argv[1]).read_text())
    print("filtered" if deny_sockets() else "hooked", flush=True)
    from agentformer.cli.commands import main as command

    for line in lines:
        print(">", *line, flush=True)
        try:
            command(line, prog_name="agentformer")
        except SystemExit as ended:
            print("ended", ended.code or 0, flush=True)


if __name__ == "__main__":
    main()
