"""Jobs: uploads that go on after their request was answered."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentformer.api.models.common import Cursor, Limit, Namespace, ResponseModel
from agentformer.api.models.documents import Document
from agentformer.api.request import ParameterModel


class JobsAsked(ParameterModel):
    """Which jobs are listed."""

    namespace: Namespace = Field(default=None, description="Left out: all that the key reaches.")
    limit: Limit = 100
    after: Cursor = ""


class JobProgress(ResponseModel):
    """How far a job is. Windows are what is embedded: those in all are known of the files so far."""

    files_done: int
    files: int
    windows_done: int
    windows: int


class Job(ResponseModel):
    """An upload that was accepted. It is on the server's disk, and goes on after a restart."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"] = Field(
        description="Failed: none of the files became a document. The last three are final."
    )
    cancelling: bool = Field(description="True from the moment on at which somebody cancelled it.")
    reason: str = Field(description="Why it failed, or why it waits.")
    namespace: str
    created_at: str = Field(description="ISO 8601 in UTC.")
    updated_at: str = Field(description="ISO 8601 in UTC.")
    progress: JobProgress
    documents: list[Document] = Field(description="What became of the files that are finished, in their order.")


class Jobs(ResponseModel):
    """A page of jobs, newest first."""

    jobs: list[Job]
    next: str | None = Field(description="What `after` takes to go on; null at the end.")
