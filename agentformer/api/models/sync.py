"""Models of the sync of a folder on the server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentformer.api.models import Namespace, ResponseModel
from agentformer.api.models.requests import Metadata
from agentformer.api.request import RequestModel

_MAX_PATH = 4_096  # characters


class SyncRequest(RequestModel):
    """A folder to sync."""

    folder: Annotated[str, Field(min_length=1, max_length=_MAX_PATH)] = Field(
        description="The absolute path of a folder on the server, below a folder of the setting `sync_roots`.",
        examples=["/srv/notes"],
    )
    namespace: Namespace = None
    metadata: Metadata | None = Field(
        default=None, description="A JSON object that is stored with new and changed documents."
    )
    delete: bool = Field(
        default=False, description="Remove documents even if the folder or more than half of its files are gone."
    )
    seconds: Annotated[float, Field(gt=0, le=60)] = Field(
        default=20.0,
        description="The number of seconds after which the sync pauses. Send the request again until `left` is 0.",
    )


class SyncProblem(ResponseModel):
    """A file that is not read, and the reason."""

    name: str
    reason: str


class SyncReport(ResponseModel):
    """The result of a sync. The names are paths relative to the folder."""

    folder: str
    added: list[str]
    changed: list[str]
    removed: list[str]
    renamed: list[list[str]] = Field(description="Pairs of the former and the new name.")
    skipped: list[SyncProblem] = Field(description="Files that are left out, such as binary files.")
    failed: list[SyncProblem] = Field(description="Files that cannot be read or have no usable text.")
    unchanged: int
    left: int = Field(description="The number of files that remain for the next request.")
    counts: dict[str, int] = Field(description="The length of each list of this report.")
    seconds: float
