"""The entry point of the program. It imports very little, and handles Ctrl-C while the other modules are imported."""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False  # true for type checkers
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_INTERRUPTED = 130
_UNUSABLE = 3
_SHOWN = 200  # characters of an import error's message
# The number of new objects after which Python searches for unused cycles. With Python's default of 700, these searches
# take a twentieth of the time of a short command and of a search in the server, and find next to nothing.
_NEW_OBJECTS = 50_000


def run() -> None:
    """Run the program `agentformer`."""
    exit_on_interrupt()
    gc.set_threshold(_NEW_OBJECTS)
    try:
        if sys.argv[1:2] == ["hook"] and sys.argv[2:3] not in ([], ["-h"], ["--help"]):
            from agentformer.cli.hook import main as answer_hook

            answer_hook(sys.argv[2:])  # a person waits, so the other commands are not imported
        from agentformer.actor import ACTOR, Actor
        from agentformer.cli.commands import main

        ACTOR.set(Actor(via="cli"))
        main(prog_name="agentformer", obj=raise_on_interrupt)
    except ImportError as error:  # a required package is missing; commands report missing optional packages themselves
        _report_broken(error)
    finally:
        exit_on_interrupt()  # Ctrl-C while the interpreter shuts down
        gc.freeze()  # without this, garbage collection at exit takes a tenth of the time of a short command


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process immediately. This is safe only while the program has no open files. If the process
    ignores Ctrl-C, as under `nohup`, nothing changes."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`, so that a command can close its files before the process ends."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    if sys.stderr is not None:
        os.write(2, b"\ninterrupted\n")
    os._exit(_INTERRUPTED)


def _report_broken(error: ImportError) -> NoReturn:
    """Print an error with the name of the package that cannot be imported, and exit."""
    from agentformer.errors import failed_package

    reason = " ".join(str(error).split())[:_SHOWN]
    if sys.stderr is not None:
        sys.stderr.write(f"error: {failed_package(error)} cannot be imported ({reason}); reinstall agentformer\n")
    sys.exit(_UNUSABLE)
