"""`Caller`: the identity and the rights of the caller of a tool."""

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

_SHOWN = 200  # characters of a path that a message contains
_OPEN_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a tool.

    Stored entries get `user_id`, `agent_id`, `project` and `stored_metadata`. The caller cannot see entries of another
    user or project. Core blocks belong to a namespace, a user and an agent, not to a project. `rag_upload` may read
    files below `folder`; without a folder, it accepts contents only. With `extractive`, the caller is a language model
    that reads passages itself, so `rag_query` calls no other model.
    """

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
        """True if the caller sees only the entries of one user or project."""
        return self.user_id is not None or self.project is not None

    def namespace_for(self, requested: str | None) -> str:
        """Return the namespace to work in. Raises `Forbidden`, `InvalidInput`."""
        return self.grant.namespace(self.namespace if requested is None else requested)

    def search_scope(self, requested: str | None) -> dict[str, Any]:
        """Return the scope arguments of a search. The scope includes entries without an owner."""
        scope = {"namespace": self.namespace_for(requested), "user_id": self.user_id, "project": self.project}
        return {**scope, "or_nobody": True}

    def require_visible(self, entry: MemoryEntry) -> MemoryEntry:
        """Return the entry. If the caller may not see the entry, raise `NotFound`, as for a missing entry."""
        if not self.can_see(entry):
            raise NotFound(f"there is no entry {entry.id}")
        return self.grant.require_visible(entry)

    def can_see(self, entry: MemoryEntry) -> bool:
        """True if the user and the project of the entry are equal to the caller's, or not set."""
        pairs = (entry.user_id, self.user_id), (entry.project, self.project)
        return all(own is None or owner in (None, own) for owner, own in pairs)

    def open_file(self, path: str) -> tuple[str, BinaryIO]:
        """Open a file below `folder`. Return its relative path, such as `2024/rules.pdf`, and the open file.

        Raises `InvalidInput` if the file is not a regular file, or if it is outside `folder` after links are resolved.
        The message contains the path that the caller gave, and no other path.
        """
        if self.folder is None:
            raise InvalidInput("path", "names a file, but this caller may not read files; give text or content_base64")
        try:
            root = self.folder.resolve()
            target = (root / path).resolve()
            if not target.is_relative_to(root):
                raise InvalidInput("path", "is outside the folder that may be read; give a path below that folder")
            if any(part.startswith(".") for part in target.relative_to(root).parts):
                raise InvalidInput(
                    "path", "is hidden; hidden files are not read, because they may contain settings and keys"
                )
            return target.relative_to(root).as_posix(), _open_regular(target)
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, InvalidInput):
                raise
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a valid path"
            raise InvalidInput("path", f"{path[:_SHOWN]!r} cannot be read: {reason}") from None


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file. Do not wait for a pipe, and do not follow a link that was created after the check."""
    handle = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InvalidInput("path", "is a folder, a pipe or a device; give a file")
    return os.fdopen(handle, "rb")
