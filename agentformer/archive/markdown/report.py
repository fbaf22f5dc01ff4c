"""The result of a sync of a memory home."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentformer.rag.folder_files import Problem


@dataclass(slots=True)
class HomeReport:
    """The result of a sync, or of an export into a memory home. Names are paths in the folder, with `/`.

    The first five fields are changes of the memory: new files, edited files, entries archived because their file was
    deleted, archived entries whose file came back, and the fields that both sides had changed. `written` and `deleted`
    are changes of the folder. `pending` are changes of the folder that an export does not take, or a sync holds back,
    with the reason. `skipped` are files that are no memories, and `failed` those that cannot be used. `unchanged` is a
    number of files.
    """

    folder: str
    namespace: str
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    archived: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    conflicts: list[Problem] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    pending: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    unchanged: int = 0
    seconds: float = 0.0

    @property
    def changes_anything(self) -> bool:
        """True if the sync has changed the memory or the folder."""
        return bool(self.added or self.changed or self.archived or self.restored or self.written or self.deleted)

    @property
    def complete(self) -> bool:
        """True if every file could be used, and no field was changed on both sides."""
        return not self.failed and not self.conflicts
