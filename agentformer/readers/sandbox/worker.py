"""The child process: takes one file on stdin, gives drafts on stdout, and ends.

Started by `sandbox`. It limits itself before it imports any parser, and trusts its parent only. What native code could
do then is refused by Linux; what is refused elsewhere is refused by Python, which is less.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers.dispatch import Adapter, adapter_for
from agentformer.readers.sandbox.audit_hook import refuse_events
from agentformer.readers.sandbox.limits import FILE_BYTES, OPEN_FILES, ReadOptions
from agentformer.readers.sandbox.programs import programs
from agentformer.readers.sandbox.protocol import DONE, NOT_STARTED, READY, draft_frame, error_frame, options_from_json

if sys.platform != "win32":  # there the parent's wall clock is the only limit
    import resource
if sys.platform == "linux":
    import ctypes

    from agentformer.readers.sandbox.landlock import confine_files
    from agentformer.readers.sandbox.seccomp import refuse_calls

OWN_SHARE = 0.9  # of the wall time: the worker stops by itself before it is killed
_PR_SET_PDEATHSIG = 1
_UNNEEDED = ("pandas",)  # pytesseract imports it where it can, for what is not asked for here


def main() -> None:
    stdin, out = sys.stdin.buffer, _own_stdout()
    options = options_from_json(json.loads(stdin.readline()))
    restrict(options)
    run(stdin, options, out)


def run(stdin: IO[bytes], options: ReadOptions, out: IO[bytes]) -> None:
    """Says each draft at once, as long as there is room for the last one too."""
    said, held, end = 0, b"", DONE
    try:
        adapter = _adapter(options.media_type)
        refuse_events(programs().readable, options.folder)
        out.write(READY)
        out.flush()
        options = replace(options, deadline=time.monotonic() + OWN_SHARE * options.limits.wall_seconds)
        for document in adapter.parse(stdin.read(), options):
            held = draft_frame(document)
            if said + len(held) <= options.limits.output_bytes // 2:
                out.write(held)
                out.flush()
                said, held = said + len(held), b""
    except DocumentError as error:
        end = error_frame(error)
    except MemoryError:
        end = error_frame(DocumentTooLarge("reading the file needs more memory than a file may take"))
    except RecursionError:
        end = error_frame(CorruptDocument("the file is nested too deeply to be honest; save it again"))
    out.write(held)
    out.write(end)
    out.flush()


def _adapter(media_type: str) -> Adapter:
    """Its parser is imported before the file is seen, so what fails here is no fault of the file."""
    for name in _UNNEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: no such module
    try:
        return adapter_for(media_type)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        raise DocumentError(f"{NOT_STARTED}: {type(error).__name__} when it imports its parser") from error


def restrict(options: ReadOptions) -> None:
    """Bounded from inside: a limit set between fork and exec is unsafe with threads."""
    if sys.platform == "win32":
        return
    _limit_resources(options)
    if sys.platform == "linux":
        # The thread that started this one waits for it, so this is when the whole of the parent is gone.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        folder = (Path(options.folder),) if options.folder else ()
        readable, listed = programs()
        confine_files(readable, (Path(os.devnull), *folder), listed)
        refuse_calls(starts_programs=bool(options.folder))


def _limit_resources(options: ReadOptions) -> None:
    seconds = math.ceil(options.limits.wall_seconds) + 1
    for kind, soft, most in (
        (resource.RLIMIT_AS, options.limits.memory_bytes, options.limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # first a signal that tells why, then the end
        (resource.RLIMIT_FSIZE, *[FILE_BYTES if options.folder else 0] * 2),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        try:
            _, hard = resource.getrlimit(kind)
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (min(soft, bound), bound))
        except (ValueError, OSError):  # macOS refuses some of them
            continue


def _own_stdout() -> IO[bytes]:
    """Keep the pipe for the protocol: what a C library prints goes to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    main()
