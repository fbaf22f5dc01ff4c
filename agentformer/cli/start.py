"""Where the program begins. Ctrl-C ends it quietly from here on, before anything else of it is imported: what this file
and the packages around it import is as little as can be."""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False  # true for type checkers
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import NoReturn

_INTERRUPTED = 130
_UNUSABLE = 3
_SHOWN = 200  # characters of what an import says
_IMPORTING = ("importlib", "_frozen_importlib", "_frozen_importlib_external")


def run() -> None:
    """The program `agentformer`."""
    guard()
    from importlib import import_module

    try:
        import_module("agentformer.cli.group").main(prog_name="agentformer")
    except ImportError as error:  # what is optional is told by those who need it, so this is needed always
        _broken(error)
    finally:
        guard()  # while the interpreter ends
        gc.freeze()  # which would look for cycles in all that is there, for a tenth of a short command's time


def guard() -> None:
    """Ctrl-C ends the process at once: nothing is open yet, or all is closed already. Where it is ignored, as behind
    `nohup`, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def hand_over() -> None:
    """Ctrl-C is a `KeyboardInterrupt` again, for a command that has something to close."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    if sys.stderr is not None:
        os.write(2, b"\ninterrupted\n")
    os._exit(_INTERRUPTED)


def _broken(error: ImportError) -> NoReturn:
    """End with a line that names the package which cannot be imported."""
    reason = " ".join(str(error).split())[:_SHOWN]
    if sys.stderr is not None:
        sys.stderr.write(f"error: {whose(error)} cannot be imported ({reason}); reinstall agentformer\n")
    sys.exit(_UNUSABLE)


def whose(error: ImportError) -> str:
    """The package that we wanted: the first of others behind the last code of ours; or the module that is not there."""
    package = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        here = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if here == "agentformer":
            package = ""
        elif here not in _IMPORTING:
            package = package or here
        trace = trace.tb_next
    return package or (error.name or "a package").partition(".")[0]
