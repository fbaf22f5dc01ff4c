"""The part of `import` that stores the conversations of a chat export."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentformer.cli.output import bar, plural, print_json, safe, say
from agentformer.factory import connect

_SHOWN = 20  # problems that are named


def import_conversations(path: Path, chosen: Mapping[str, Any], options: Mapping[str, Any], *, as_json: bool) -> None:
    """Import a chat export, and print what was stored. `chosen` are the owner, the session and the speaker. Exit with
    code 1 if a conversation cannot be used."""
    with connect(**options) as af, bar("bytes") as progress:
        done = af.import_conversations(path, **chosen, progress=progress)
    if as_json:
        print_json({**dataclasses.asdict(done), "failed": [problem._asdict() for problem in done.failed]})
    else:
        for name, reason in done.failed[:_SHOWN]:
            say(f"failed     {safe(name)}  ({safe(reason)})")
        if (more := done.failures - min(len(done.failed), _SHOWN)) > 0:
            say(f"failed     {plural(more, 'more conversation')} (--json lists the first 1,000)")
        say(
            f"messages imported: {done.messages}, in {plural(done.conversations, 'session')}; "
            f"there already: {done.there_already}; without text of a person or an assistant: {done.skipped}; "
            f"failed: {done.failures}"
        )
    if done.failures:
        sys.exit(1)
