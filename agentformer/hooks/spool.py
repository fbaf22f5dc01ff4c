"""The spool: captured events wait in files until the companion stores them.

A file has one event. It appears complete (it is written beside and renamed), and is deleted after its event is stored.
If the companion is killed between these steps, the event is stored again under the same id, which changes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.access.secret_masking import reads_secrets, shortened, without_secrets
from agentformer.hooks.agent_formats import Event

_MAX_TEXT = 20_000  # characters of a prompt or an answer that are kept
_MAX_TOOL = 2_000  # characters of the input and of the output of a tool that are kept
_MAX_FILES = 10_000  # events that wait; if the companion cannot store them, later ones are dropped
_EMPTY = Event("claude-code", "end", "", "", "")
OFF = "off"  # while this file exists, nothing is captured


class Captured(NamedTuple):
    """A captured event: its file, its id, and its fields as JSON values."""

    file: Path
    id: str
    values: dict[str, Any]


class Spool:
    """The folder of captured events of one memory, `hooks` inside the folder of its indexes."""

    def __init__(self, index_dir: Path) -> None:
        self.folder = index_dir / "hooks"
        self.alive = self.folder / "companion.alive"  # the companion touches this file while it lives
        self.socket = self.folder / "companion.sock"

    @property
    def on(self) -> bool:
        """Whether events are captured. `agentformer hooks off` writes a file that switches it off."""
        return not (self.folder / OFF).exists()

    def switch(self, on: bool) -> None:
        """Switch capturing on or off. Events that wait are stored anyway."""
        self.make()
        (self.folder / OFF).unlink(missing_ok=True) if on else (self.folder / OFF).touch(mode=0o600)

    def make(self) -> None:
        """Create the folder, for the owner only."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, event: Event) -> bool:
        """Write an event without its secrets. Return False if there is nothing to keep, or too many events wait."""
        values: dict[str, Any] = event._asdict()
        if event.kind == "tool":
            hidden = reads_secrets(event.given)
            values["given"] = _written(event.given)
            values["output"] = "" if hidden else _written(event.output)
        else:
            values["text"] = without_secrets(event.text[: 2 * _MAX_TEXT])[:_MAX_TEXT].strip()
            if not values["text"]:
                return False
        self.make()
        if sum(1 for _ in self.folder.iterdir()) > _MAX_FILES:
            return False
        values["at"] = time.time()
        name = f"{time.time_ns():020}-{os.urandom(4).hex()}"  # sorted by time
        partial = self.folder / f"{name}.part"
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as out:
            out.write(json.dumps(values, ensure_ascii=False))
        partial.rename(self.folder / f"{name}.json")
        return True

    def set_aside(self) -> list[Path]:
        """Return the files of events that could not be stored."""
        return sorted(self.folder.glob("*.bad"))

    def waiting(self) -> Iterator[Captured]:
        """Yield the events that wait, oldest first. A file that is no event is set aside as `NAME.bad`."""
        try:
            files = sorted(self.folder.glob("*.json"))
        except FileNotFoundError:
            return
        for file in files:
            try:
                values = json.loads(file.read_text("utf-8"))
                yield Captured(file, file.stem, {**_EMPTY._asdict(), **values})
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError):
                file.rename(file.with_suffix(".bad"))


def _written(value: Any) -> str:
    """Return the input or the output of a tool as text, without secrets, with at most `_MAX_TOOL` characters."""
    short = shortened(value, _MAX_TOOL)
    text = short if isinstance(short, str) else "" if short is None else json.dumps(short, ensure_ascii=False)
    return text[:_MAX_TOOL]
