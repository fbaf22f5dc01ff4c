"""The child process that finds the symbols of source texts. It reads one text after another from standard input, and
ends if it gets no text for some time. It has no network, no files and limited memory, like the readers of documents."""

from __future__ import annotations

import json
import os
import select
import sys
from dataclasses import replace
from typing import IO

from agentformer.errors import DocumentError
from agentformer.readers.adapters import MIB, ReadLimits, ReadOptions
from agentformer.readers.code import tree
from agentformer.readers.media_type import PLAIN
from agentformer.readers.sandbox.protocol import DONE, READY, error_frame, parts_frame
from agentformer.readers.sandbox.worker import programs, refuse_events, restrict

_IDLE_SECONDS = 30.0  # a sync sends the next text within a second
_LIMITS = ReadLimits(wall_seconds=1_200.0, memory_bytes=1_024 * MIB)  # seconds of processor for all texts together


def main() -> None:
    """Run the worker: answer each request on standard input by a frame on standard output."""
    stdin, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the pipe is for frames only: output of C libraries is sent to stderr
    restrict(ReadOptions("", PLAIN, limits=replace(_LIMITS)))
    tree.prepare()
    refuse_events(programs()[0], "")
    out.write(READY)
    out.flush()
    while select.select([stdin], [], [], _IDLE_SECONDS)[0] and (line := stdin.readline()):
        _answer(line, stdin, out)


def _answer(line: bytes, stdin: IO[bytes], out: IO[bytes]) -> None:
    request = json.loads(line)
    text = stdin.read(int(request["bytes"]))
    try:
        out.write(parts_frame(list(tree.as_lists(tree.parts_of_tree(text, request["language"])))))
        out.write(DONE)
    except (ImportError, AttributeError, ValueError, KeyError, RecursionError, MemoryError) as error:
        out.write(error_frame(DocumentError(type(error).__name__)))
    out.flush()


if __name__ == "__main__":
    main()
