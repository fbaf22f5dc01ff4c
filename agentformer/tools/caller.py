"""Who calls a tool, and whose memories are meant where the arguments do not say."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.errors import InvalidInput, NotFound
from agentformer.types import MemoryEntry

_SHOWN = 200  # characters of a path that a message repeats
_CAREFUL = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Caller:
    """`user_id`, `agent_id` and `project` are stamped on what is stored; memories of another user or project than
    these are not seen. Core blocks belong to a namespace, a user and an agent, and have no project. `folder` is where
    `rag_upload` may read files from; without one it takes contents only. `extractive`: the caller is a language model that
    reads passages itself, so `rag_query` asks none. `stored_metadata` are metadata of each memory that is added."""

    grant: Grant = EVERYTHING
    namespace: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    project: str | None = None
    session_id: str | None = None
    folder: Path | None = None
    extractive: bool = False
    stored_metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_restricted(self) -> bool:
        """Whether only some memories of a namespace are this caller's business."""
        return self.user_id is not None or self.project is not None

    def namespace_for(self, asked: str | None) -> str:
        """The namespace to work in. Raises `Forbidden`, `InvalidInput`."""
        return self.grant.namespace(self.namespace if asked is None else asked)

    def search_scope(self, asked: str | None) -> dict[str, Any]:
        """Where to look: the arguments of a search. What belongs to nobody in particular, as documents do, is seen."""
        place = {"namespace": self.namespace_for(asked), "user_id": self.user_id, "project": self.project}
        return {**place, "or_nobody": True}

    def require_visible(self, entry: MemoryEntry) -> MemoryEntry:
        """The entry, if it is this caller's business. Raises `NotFound` as for one that is not there."""
        if not self.can_see(entry):
            raise NotFound(f"there is no entry {entry.id}")
        return self.grant.sees(entry)

    def can_see(self, entry: MemoryEntry) -> bool:
        """Whether it belongs to this user and project, or to nobody in particular."""
        mine = (entry.user_id, self.user_id), (entry.project, self.project)
        return all(own is None or of in (None, own) for of, own in mine)

    def open_file(self, path: str) -> tuple[str, BinaryIO]:
        """The file that a tool was asked to read: its place below `folder`, such as `2024/rules.pdf`, and itself,
        opened. Raises `InvalidInput` for one that is no regular file or lies outside `folder`, links followed; the
        message names it as the caller did, and no other path."""
        if self.folder is None:
            raise InvalidInput("path", "names a file that is not read from here; give text or content_base64")
        try:
            root = self.folder.resolve()
            found = (root / path).resolve()
            if not found.is_relative_to(root):
                raise InvalidInput("path", "lies outside the folder that may be read from; give a path below it")
            if any(part.startswith(".") for part in found.relative_to(root).parts):
                raise InvalidInput("path", "is hidden; settings and keys lie in such files, and are not read")
            return found.relative_to(root).as_posix(), _opened(found)
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, InvalidInput):
                raise
            why = error.strerror if isinstance(error, OSError) and error.strerror else "that cannot be a path"
            raise InvalidInput("path", f"{path[:_SHOWN]!r} cannot be read: {why}") from None


def _opened(path: Path) -> BinaryIO:
    """Without waiting at a pipe, and without following a link that was put there meanwhile."""
    handle = os.open(path, os.O_RDONLY | _CAREFUL)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InvalidInput("path", "is a folder, a pipe or a device; give a file")
    return os.fdopen(handle, "rb")
