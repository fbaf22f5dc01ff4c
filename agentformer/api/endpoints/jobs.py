"""Endpoints to list, follow and cancel jobs. A job is an upload that continues after the response."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Literal

from flask import Response
from pydantic import Field

from agentformer.access.permissions import Grant
from agentformer.api.models import Namespace, Next, ResponseModel
from agentformer.api.models.documents import Document, PageParameters
from agentformer.api.operations import Router, Service
from agentformer.api.response import EVENT_STREAM, Event, prefers_events, reply, reply_page, stream
from agentformer.errors import Busy, Conflict, NotFound
from agentformer.jobs.queue import Jobs as JobQueue
from agentformer.jobs.store import Job as UploadJob

JOB = "/api/jobs/{job_id}"
_ACCEPT = {"Accept": f"With `{EVENT_STREAM}`, the response is a stream of events `progress`, and `done` at the end."}
_POLL_SECONDS = 0.5  # between two reads of the state of a followed job, which another process may run
_SILENT_POLLS = 6  # reads without a change, after which a comment is sent
_INTERRUPTED = "A server error interrupted this stream. The job continues. Send the request again."

router = Router("jobs")


class JobsParameters(PageParameters):
    """Query parameters that select a page of the list of jobs."""

    namespace: Namespace = Field(
        default=None, description="The namespace. By default, the jobs of all namespaces of the key are listed."
    )


class JobProgress(ResponseModel):
    """The progress of a job. A window is a piece of text that the embedding model reads at once. `windows` counts the
    windows in the files that were read so far, and `windows_done` counts the embedded windows."""

    files_done: int
    files: int
    pages: int = Field(
        description="The pages read so far. If another process of the server runs the job, only finished files count."
    )
    chunks: int = Field(description="The number of passages made so far, from the pages that were read.")
    windows_done: int
    windows: int


class Job(ResponseModel):
    """An accepted upload. The job is stored on the disk of the server, and continues after a restart of the server."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"] = Field(
        description="`failed` means that no file was stored. The states `done`, `failed` and `cancelled` are final."
    )
    cancelling: bool = Field(description="True if the cancellation was requested and the job has not ended yet.")
    reason: str = Field(description="The reason why the job failed or waits, or an empty text.")
    namespace: str
    created_at: str = Field(description="The time of the upload, in ISO 8601 and UTC.")
    updated_at: str = Field(description="The time of the last change of the job, in ISO 8601 and UTC.")
    progress: JobProgress
    documents: list[Document] = Field(description="The results of the finished files, in the order of the upload.")


class Jobs(ResponseModel):
    """A page of the list of jobs. The newest job comes first."""

    jobs: list[Job]
    next: Next


@router.route("GET", "/api/jobs", "jobs", {200: Jobs})
def list_jobs(service: Service, grant: Grant, query: JobsParameters) -> Response:
    """List the jobs of the key, newest first. A key with the right `admin` gets the jobs of all keys."""
    namespaces = grant.namespaces if query.namespace is None else (grant.namespace(query.namespace),)
    key_id = None if grant.may("admin") else grant.key_id
    page = service.jobs.page(namespaces, after=query.after, limit=query.limit, key_id=key_id)
    return reply_page("jobs", [job.as_json() for job in page], query.limit)


@router.route("GET", JOB, "jobs", {200: (Job, EVENT_STREAM)}, headers=_ACCEPT, errors=(429,))
def get_job(service: Service, grant: Grant, job_id: str) -> Response:
    """Return the state of a job, or stream the progress of the job.

    If the header `Accept` prefers `text/event-stream`, the response is a stream of events: `progress` after each
    change, and `done` at the end. Otherwise, the response is the job as JSON."""
    job = _find(service.jobs, grant, job_id)
    if not prefers_events():
        return reply(job.as_json())
    return follow(service, _events(service.jobs, job), _INTERRUPTED)


def follow(service: Service, events: Generator[Event | None, None, None], interrupted: str) -> Response:
    """Return a response that streams events for as long as the client stays; see `response.stream`. Raises `Busy` if
    too many clients follow something, because each of them uses a thread."""
    if not service.followers.acquire(blocking=False):
        message = "Server busy: too many clients follow streams. Send the request for JSON, or retry after 5 s."
        raise Busy("threads", message, 5)
    with ExitStack() as held:
        held.callback(service.followers.release)
        response = service.threads.run(lambda: stream(events, interrupted))
        response.call_on_close(held.pop_all().close)
        return response


@router.route("DELETE", JOB, "cancel job", {200: Job, 204: None}, errors=(409,))
def cancel_job(service: Service, grant: Grant, job_id: str) -> Response:
    """Cancel a job.

    A queued job ends at once. A running job ends a short time later. Documents that are stored already are not deleted.
    The response contains the job, or is 409 if the job has already ended. For a key without the right to read, the
    response is always 204 and empty. Otherwise, such a key could learn how long a job takes, and so whether its files
    were stored before."""
    job = _find(service.jobs, grant, job_id)
    try:
        job = service.jobs.cancel(job.id)
    except Conflict:
        if grant.may("read"):
            raise
    return reply(job.as_json()) if grant.may("read") else Response(status=204)


def _find(jobs: JobQueue, grant: Grant, job_id: str) -> UploadJob:
    """Return the job with this id. Raises `NotFound` if there is no such job, if the grant does not allow the namespace
    of the job, or if another key has made the job and the grant has no right `admin`. All cases have the same message,
    so that a client cannot find out which ids exist."""
    with suppress(NotFound):
        job = jobs.get(job_id)
        if grant.reaches(job.task.namespace) and (job.task.key_id == grant.key_id or grant.may("admin")):
            return job
    raise NotFound(f"there is no job {job_id:.80}")


def _events(jobs: JobQueue, job: UploadJob) -> Generator[Event | None, None, None]:
    """Yield the events of a job: `progress` after each change, and `done` at the end. Yield None after some seconds
    without a change. If the server stops, the events end without `done`, because another process continues the job."""
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
