"""Endpoints of jobs: uploads that continue after the response to their request."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any, Literal

from flask import Response
from pydantic import Field

from agentformer.access.grant import Grant
from agentformer.api.documents import accepts_events
from agentformer.api.models import NEXT, Cursor, Limit, Namespace, ResponseModel
from agentformer.api.models.documents import Document
from agentformer.api.operations import Operation, Operations
from agentformer.api.request import ParameterModel
from agentformer.api.response import EVENT_STREAM, Event, reply, stream
from agentformer.errors import Busy, NotFound
from agentformer.factory import AgentFormer
from agentformer.jobs.queue import Jobs as JobQueue
from agentformer.jobs.store import Job as UploadJob

JOB = "/api/jobs/{job_id}"
_TAG = "jobs"
_ACCEPT = {"Accept": f"`{EVENT_STREAM}`: events `progress` while the job runs, and last `done` with the job."}
_POLL_SECONDS = 0.5  # between looks at a job that is followed: another process may run it
_SILENT_POLLS = 6  # without a change, before a comment is sent
_INTERRUPTED = "This stream was interrupted by a server error. The job continues. Ask again."


class JobsParameters(ParameterModel):
    """A page of jobs."""

    namespace: Namespace = Field(default=None, description="The namespace. Default: all namespaces of the key.")
    limit: Limit = 100
    after: Cursor = ""


class JobProgress(ResponseModel):
    """The progress of a job. Windows are the units of embedding; their total grows with each file that is read."""

    files_done: int
    files: int
    windows_done: int
    windows: int


class Job(ResponseModel):
    """An accepted upload. It is stored on the server's disk, and continues after a restart."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"] = Field(
        description="`failed`: no file could be stored as a document. The last three are final."
    )
    cancelling: bool = Field(description="True as soon as the job is cancelled, until it ends.")
    reason: str = Field(description="The reason why the job failed or waits.")
    namespace: str
    created_at: str = Field(description="ISO 8601 in UTC.")
    updated_at: str = Field(description="ISO 8601 in UTC.")
    progress: JobProgress
    documents: list[Document] = Field(description="The results of the finished files, in order.")


class Jobs(ResponseModel):
    """A page of jobs, newest first."""

    jobs: list[Job]
    next: str | None = Field(description=NEXT)


def add_jobs(operations: Operations, af: AgentFormer, jobs: JobQueue) -> None:
    """Declare the endpoints. Streams may block a quarter of the server's threads."""
    _add_list(operations, jobs)
    _add_get(operations, jobs, threading.BoundedSemaphore(max(1, af.settings.threads // 4)))
    _add_cancel(operations, jobs)


def _add_list(operations: Operations, jobs: JobQueue) -> None:
    @operations.declare(
        Operation(method="GET", path="/api/jobs", right="read", query=JobsParameters, returns={200: Jobs}, tag=_TAG)
    )
    def list_jobs(grant: Grant, query: JobsParameters) -> Response:
        """List jobs, newest first."""
        namespaces = grant.namespaces if query.namespace is None else (grant.namespace(query.namespace),)
        page = [job.as_json() for job in jobs.page(namespaces, after=query.after, limit=query.limit)]
        return reply({"jobs": page, "next": page[-1]["id"] if len(page) == query.limit else None})


def _add_get(operations: Operations, jobs: JobQueue, followers: threading.BoundedSemaphore) -> None:
    @operations.declare(
        Operation(
            method="GET",
            path=JOB,
            right="read",
            headers=_ACCEPT,
            returns={200: (Job, EVENT_STREAM)},
            errors=(429,),
            tag=_TAG,
        )
    )
    def get_job(grant: Grant, job_id: str) -> Response:
        """Return the state of a job, or stream its progress."""
        job = _find(jobs, grant, job_id)
        if not accepts_events():
            return reply(job.as_json())
        if not followers.acquire(blocking=False):
            message = "Server busy: too many clients follow jobs. Poll with JSON instead, or retry after 5 s."
            raise Busy("threads", message, 5)
        try:
            response = operations.threads.run(lambda: stream(_events(jobs, job), _INTERRUPTED))
        except BaseException:
            followers.release()
            raise
        response.call_on_close(followers.release)
        return response


def _add_cancel(operations: Operations, jobs: JobQueue) -> None:
    @operations.declare(
        Operation(method="DELETE", path=JOB, right="write", returns={200: Job, 204: None}, errors=(409,), tag=_TAG)
    )
    def cancel_job(grant: Grant, job_id: str) -> Response:
        """Cancel a job.

        A queued job ends at once, a running one with its next file or batch. Stored documents stay. A job that has
        ended is a conflict. 204 for a key without the right to read.
        """
        job = jobs.cancel(_find(jobs, grant, job_id).id)
        return reply(job.as_json()) if grant.may("read") else Response(status=204)


def _find(jobs: JobQueue, grant: Grant, job_id: str) -> UploadJob:
    """Return a job. Raises `NotFound`, with the same message for one that the grant does not reach."""
    with suppress(NotFound):
        job = jobs.get(job_id)
        if grant.reaches(job.task.namespace):
            return job
    raise NotFound(f"there is no job {job_id:.80}")


def _events(jobs: JobQueue, job: UploadJob) -> Generator[Event | None, None, None]:
    """Yield `progress` with every change, None in a silence, and last `done`. If the server stops, yield nothing more:
    the job continues in another process."""
    last: Mapping[str, Any] = {}
    unchanged = 0
    while not job.ended:
        state = {"id": job.id, "state": job.state, "cancelling": job.cancelling, "progress": job.progress()}
        unchanged = 0 if state != last else unchanged + 1
        if not unchanged:
            yield "progress", state
        elif unchanged % _SILENT_POLLS == 0:
            yield None
        last = state
        if jobs.stopped(_POLL_SECONDS):
            return
        job = jobs.get(job.id)
    yield "done", job.as_json()
