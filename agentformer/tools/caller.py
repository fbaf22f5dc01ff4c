"""`Caller`: the identity and the rights of the caller of a tool."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.errors import Forbidden, InvalidInput, NotFound
from agentformer.rag.removals import Removals
from agentformer.settings.access import PLAIN
from agentformer.types import MemoryEntry, Where

_SHOWN = 200  # characters of a path that a message contains


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a tool, with rights and limits. The entries that the caller stores get `user_id`, `agent_id`,
    `project` and `stored_metadata`. A caller with a user or a project cannot see entries of another user or project.
    Such a caller can read, but not change, entries that have no user or no project. Core blocks belong to a namespace,
    a user and an agent, not to a project; documents belong to a namespace and a user. The tool `rag_upload` may read
    only
    files in `folder`, and no files if `folder` is None. If `extractive` is true, `rag_query` calls no language model,
    because the caller is a language model, which reads the passages itself. Searches leave out the documents of
    `removals`, which are going to be deleted."""

    grant: Grant = EVERYTHING
    namespace: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    project: str | None = None
    session_id: str | None = None
    folder: Path | None = None
    extractive: bool = False
    removals: Removals | None = None
    stored_metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_restricted(self) -> bool:
        """True if the caller sees only the entries of one user or one project."""
        return self.user_id is not None or self.project is not None

    def namespace_for(self, requested: str | None) -> str:
        """Return the namespace for a call: `requested`, or if `requested` is None, the namespace of the caller. Raises
        `Forbidden` if the grant does not allow the namespace, and `InvalidInput` for an invalid name."""
        return self.grant.namespace(self.namespace if requested is None else requested)

    def search_scope(self, requested: str | None) -> dict[str, Any]:
        """Return the arguments that limit a search in the namespace `requested` to the entries that the caller may see.
        Entries without a user or project are included."""
        scope = {"namespace": self.namespace_for(requested), "user_id": self.user_id, "project": self.project}
        return {**scope, "or_nobody": True}

    def filter(self, where: Where | None, namespace: str) -> Where | None:
        """Return `where` with a condition that leaves out the documents in `removals`. Return None if there is no
        condition."""
        return where if self.removals is None else self.removals.hide(where, namespace)

    def require_visible(self, entry: MemoryEntry) -> MemoryEntry:
        """Return the entry if the caller may see it. Otherwise, raise `NotFound` with the same message as for an entry
        that does not exist."""
        if not self.can_see(entry):
            raise NotFound(f"there is no entry {entry.id}")
        return self.grant.require_visible(entry)

    def require_changeable(self, entry: MemoryEntry) -> MemoryEntry:
        """Return the entry if the caller may change or delete it. A caller with a user may read, but not change,
        entries without a user, because other callers use them too. The same holds for the project, except for core
        blocks, which have no project. Raises `NotFound` if the caller cannot see the entry, and `Forbidden` if the
        caller may only read it."""
        self.require_visible(entry)
        shared = self.user_id is not None and entry.user_id is None
        if entry.tier != "core":
            shared = shared or (self.project is not None and entry.project is None)
        if shared:
            raise Forbidden(
                f"entry {entry.id} is shared by several users or projects, so this caller may only read it; add "
                "a memory instead"
            )
        return entry

    def can_see(self, entry: MemoryEntry) -> bool:
        """Return True if the entry belongs to the user and to the project of the caller. An entry without a user is
        visible to callers of every user, and a caller without a user sees the entries of all users. The same holds for
        projects, to which no document belongs."""
        return self.can_see_user(entry.user_id) and (self.project is None or entry.project in (None, self.project))

    def can_see_user(self, user_id: str | None) -> bool:
        """Return True if the caller sees what belongs to this user, or to no user if `user_id` is None."""
        return self.user_id is None or user_id in (None, self.user_id)

    def open_file(self, path: str) -> tuple[str, BinaryIO]:
        """Open a file in `folder`. Return its path relative to `folder`, such as `2024/rules.pdf`, and the open file.
        Raises `InvalidInput` if the file is hidden, is outside `folder` after links are resolved, cannot be read, or is
        not a regular file. The message contains only the path that the caller gave."""
        if self.folder is None:
            raise InvalidInput("path", "names a file, but this caller may not read files; give text or content_base64")
        try:
            root = self.folder.resolve()
            target = (root / path).resolve()
            if not target.is_relative_to(root):
                raise InvalidInput("path", "is outside the folder that may be read; give a path below that folder")
            if any(part.startswith(".") for part in target.relative_to(root).parts):
                raise InvalidInput(
                    "path", "is hidden; hidden files are not read, because they may contain keys; give another file"
                )
            return target.relative_to(root).as_posix(), _open_regular(target)
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, InvalidInput):
                raise
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a valid path"
            raise InvalidInput("path", f"{path[:_SHOWN]!r} cannot be read: {reason}") from None


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file. For a pipe, raise `InvalidInput` at once and do not wait. Do not follow a link that was
    created after the path was checked."""
    handle = os.open(path, os.O_RDONLY | PLAIN)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InvalidInput("path", "is a folder, a pipe or a device; give a file")
    return os.fdopen(handle, "rb")
