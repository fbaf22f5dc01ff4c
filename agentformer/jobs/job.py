"""A job: files that are brought in after their request was answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

State = Literal["queued", "running", "done", "failed", "cancelled"]
WAITING: tuple[State, ...] = ("queued", "running")  # what has ended never changes again
_USABLE = ("ready", "pending")  # statuses of a document that is found


def usable(documents: Iterable[Mapping[str, Any]]) -> bool:
    """Did any of the files become a document that is found?"""
    return any(document["status"] in _USABLE for document in documents)


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done: where to, with what, and the files' names as the client gave them."""

    namespace: str
    names: tuple[str, ...]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands. `documents` has the outcome of each file that is finished, in the order of `task.names`.
    Windows are what is embedded: those in all are known of the files so far."""

    id: str
    task: Task
    state: State
    created_at: datetime
    updated_at: datetime
    documents: tuple[Mapping[str, Any], ...] = ()
    windows_done: int = 0
    windows: int = 0
    cancelling: bool = False  # somebody wants it to end, and it has not yet
    reason: str = ""  # why it failed, or why it waits

    @property
    def ended(self) -> bool:
        return self.state not in WAITING

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "cancelling": self.cancelling,
            "reason": self.reason,
            "namespace": self.task.namespace,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
            "progress": self.progress(),
            "documents": [dict(document) for document in self.documents],
        }

    def progress(self) -> dict[str, int]:
        return {
            "files_done": len(self.documents),
            "files": len(self.task.names),
            "windows_done": self.windows_done,
            "windows": self.windows,
        }
