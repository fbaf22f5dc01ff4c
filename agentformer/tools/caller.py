"""Who calls a tool, and whose memories are meant where the arguments do not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.errors import InvalidInput, NotFound
from agentformer.types import MemoryEntry


@dataclass(frozen=True, slots=True)
class Caller:
    """`user_id`, `agent_id` and `project` are stamped on what is stored; memories of another user or project than
    these are not seen. `folder` is where `rag_upload` may read files from; without one it takes contents only."""

    grant: Grant = EVERYTHING
    namespace: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    project: str | None = None
    session_id: str | None = None
    folder: Path | None = None

    def within(self, asked: str | None) -> str:
        """The namespace to work in. Raises `Forbidden`, `InvalidInput`."""
        return self.grant.namespace(self.namespace if asked is None else asked)

    def place(self, asked: str | None) -> dict[str, str | None]:
        """Where to look: the arguments of a search or a list."""
        return {"namespace": self.within(asked), "user_id": self.user_id, "project": self.project}

    def sees(self, entry: MemoryEntry) -> MemoryEntry:
        """The entry, if it is this caller's business. Raises `NotFound` as for one that is not there."""
        mine = (entry.user_id, self.user_id), (entry.project, self.project)
        if any(own is not None and of not in (None, own) for of, own in mine):
            raise NotFound(f"there is no entry {entry.id}")
        return self.grant.sees(entry)

    def file(self, path: str) -> Path:
        """The file that a tool was asked to read. Raises `InvalidInput` for one outside `folder`."""
        if self.folder is None:
            raise InvalidInput("path", "names a file that is not read from here; give text or content_base64")
        root = self.folder.resolve()
        try:
            found = (root / path).resolve()
        except (OSError, ValueError, RuntimeError):
            raise InvalidInput("path", "cannot be a path") from None
        if not found.is_relative_to(root):
            raise InvalidInput("path", "lies outside the folder that may be read from; give a path below it")
        return found
