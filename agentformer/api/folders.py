"""The endpoint `POST /api/rag/sync`, which makes documents equal to the files of a folder on the server."""

from __future__ import annotations

from typing import Annotated

from flask import Response
from pydantic import Field

from agentformer.access.permissions import Grant
from agentformer.api.models import Namespace, ResponseModel
from agentformer.api.models.requests import Metadata
from agentformer.api.operations import Router, Service
from agentformer.api.request import RequestModel, arguments_of
from agentformer.api.response import reply
from agentformer.tools.result_json import sync_json

_MAX_PATH = 4_096  # characters

router = Router("documents")


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
        default=False, description="Remove documents also if the folder or more than half of its files are gone."
    )
    seconds: Annotated[float, Field(gt=0, le=60)] = Field(
        default=20.0,
        description="The time after which the sync pauses. It ends with the current file, and `left` is the number of "
        "files that remain. Send the request again until `left` is 0: each file is stored at once, so no work is lost.",
    )


class Problem(ResponseModel):
    """A file that is not read, and the reason."""

    name: str
    reason: str


class SyncReport(ResponseModel):
    """What a sync has done. The names are paths in the folder."""

    folder: str
    added: list[str]
    changed: list[str]
    removed: list[str]
    renamed: list[list[str]] = Field(description="Pairs of the former and the new name.")
    skipped: list[Problem] = Field(description="Files that are left out, such as binary files.")
    failed: list[Problem] = Field(description="Files that cannot be read or have no usable text.")
    unchanged: int
    left: int = Field(description="Number of files that remain for the next request.")
    counts: dict[str, int] = Field(description="The length of each list.")
    seconds: float


@router.route("POST", "/api/rag/sync", "rag_sync", {200: SyncReport}, errors=(409, 429, 507), uses_model=True)
def sync(service: Service, grant: Grant, body: SyncRequest) -> Response:
    """Make the documents of a folder on the server equal to its files.

    New and changed files are stored, files that were moved inside the folder keep their vectors, and the documents of
    files that are gone are removed. Files that have not changed are not read. Only folders below those of the setting
    `sync_roots` are allowed; for another folder, the response is 403.
    """
    return reply(sync_json(service.af.rag.sync_allowed(**arguments_of(body, grant))))
