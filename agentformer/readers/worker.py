"""The child process: takes one file on stdin, gives drafts as lines of JSON on stdout, and ends.

Started by `sandbox`. It limits itself before it imports any parser, and trusts its parent only.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import replace
from typing import IO

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers.dispatch import adapter_for
from agentformer.readers.limits import ReadOptions
from agentformer.readers.wire import document_to_json, error_to_json, options_from_json, to_line

if sys.platform != "win32":  # there the parent's wall clock is the only limit
    import resource

OWN_SHARE = 0.9  # of the wall time: the worker stops by itself before it is killed


def main() -> None:
    stdin, out = sys.stdin.buffer, _own_stdout()
    options = options_from_json(json.loads(stdin.readline()))
    options = replace(options, deadline=time.monotonic() + OWN_SHARE * options.limits.wall_seconds)
    restrict(options)
    run(stdin.read(), options, out)


def run(data: bytes, options: ReadOptions, out: IO[bytes]) -> None:
    try:
        for document in adapter_for(options.media_type).parse(data, options):
            out.write(to_line({"document": document_to_json(document)}))
            out.flush()
        out.write(to_line({"done": True}))
    except DocumentError as error:
        out.write(to_line(error_to_json(error)))
    except MemoryError:
        out.write(to_line(error_to_json(DocumentTooLarge("reading the file needs more memory than a file may take"))))
    except RecursionError:
        out.write(to_line(error_to_json(CorruptDocument("the file is nested too deeply to be honest; save it again"))))
    out.flush()


def restrict(options: ReadOptions) -> None:
    """Memory and processor time are bounded from inside: a limit set between fork and exec is unsafe with threads."""
    if sys.platform == "win32":
        return
    seconds = math.ceil(options.limits.wall_seconds) + 1
    for kind, amount in (
        (resource.RLIMIT_AS, options.limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            _, hard = resource.getrlimit(kind)
            bound = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(kind, (bound, hard))
        except (ValueError, OSError):  # macOS refuses some of them
            continue


def _own_stdout() -> IO[bytes]:
    """Keep the pipe for the protocol: what a C library prints goes to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    main()
