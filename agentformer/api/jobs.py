"""Endpoints of jobs: look, follow, list, cancel."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any

from flask import Response, request

from agentformer.access.grant import Grant
from agentformer.api.models import jobs as models
from agentformer.api.operations import Operations
from agentformer.api.response import reply
from agentformer.api.streaming import EVENT_STREAM, stream_of
from agentformer.errors import Busy, NotFound
from agentformer.factory import AgentFormer
from agentformer.jobs.queue import Jobs
from agentformer.jobs.store import Job

ONE_JOB = "/api/jobs/{job_id}"
_TAG = "jobs"
_ACCEPT = {"Accept": f"`{EVENT_STREAM}`: events `progress` while the job goes on, and last `done` with the job."}
_LOOK = 0.5  # seconds between looks at a job that is followed; it may be another process that works on it
_SILENCE = 6  # looks without news, after which a comment goes out
_BROKE_OFF = "This stream broke off by an error of this server; the job goes on. Ask again."

Event = tuple[str, Mapping[str, Any]]


def add_jobs(operations: Operations, af: AgentFormer, jobs: Jobs) -> None:
    _add_list(operations, jobs)
    _add_one(operations, jobs, threading.BoundedSemaphore(max(1, af.settings.threads // 4)))
    _add_cancel(operations, jobs)


def _add_list(operations: Operations, jobs: Jobs) -> None:
    @operations.declare("GET", "/api/jobs", right="read", query=models.JobsAsked, returns={200: models.Jobs}, tag=_TAG)
    def listed(grant: Grant, query: models.JobsAsked) -> Response:
        """List jobs, newest first."""
        namespaces = grant.namespaces if query.namespace is None else (grant.namespace(query.namespace),)
        page = [job.as_json() for job in jobs.page(namespaces, after=query.after, limit=query.limit)]
        return reply({"jobs": page, "next": page[-1]["id"] if len(page) == query.limit else None})


def _add_one(operations: Operations, jobs: Jobs, followers: threading.BoundedSemaphore) -> None:
    """`followers` bounds how many of the server's threads are held by streams."""

    @operations.declare(
        "GET",
        ONE_JOB,
        right="read",
        headers=_ACCEPT,
        returns={200: (models.Job, EVENT_STREAM)},
        faults=(429,),
        tag=_TAG,
    )
    def one(grant: Grant, job_id: str) -> Response:
        """Tell how far a job is."""
        job = _seen(jobs, grant, job_id)
        if request.accept_mimetypes.best_match(["application/json", EVENT_STREAM]) != EVENT_STREAM:
            return reply(job.as_json())
        if not followers.acquire(blocking=False):
            raise Busy("threads", "too many follow jobs here already; ask for JSON from time to time", 5)
        try:
            stream = operations.room.answer(lambda: stream_of(_events(jobs, job), _BROKE_OFF))
        except BaseException:
            followers.release()
            raise
        stream.call_on_close(followers.release)
        return stream


def _add_cancel(operations: Operations, jobs: Jobs) -> None:
    @operations.declare("DELETE", ONE_JOB, right="write", returns={200: models.Job, 204: None}, faults=(409,), tag=_TAG)
    def cancel(grant: Grant, job_id: str) -> Response:
        """Cancel a job.

        One that waits ends at once; one that runs, with its next file or batch. Documents that are stored stay. A job
        that has ended is a conflict. 204 for a key that may not read.
        """
        job = jobs.cancel(_seen(jobs, grant, job_id).id)
        return reply(job.as_json()) if grant.may("read") else Response(status=204)


def _seen(jobs: Jobs, grant: Grant, job_id: str) -> Job:
    """The job, if its namespace is reached; else the same `NotFound` as for one that is not there."""
    with suppress(NotFound):
        job = jobs.get(job_id)
        if grant.reaches(job.task.namespace):
            return job
    raise NotFound(f"there is no job {job_id:.80}")


def _events(jobs: Jobs, job: Job) -> Generator[Event | None, None, None]:
    """`progress` with every change, None in a silence, and last `done`; nothing more where the server stops, since
    another process goes on with the job then."""
    told: Mapping[str, Any] = {}
    silent = 0
    while not job.ended:
        state = {"id": job.id, "state": job.state, "cancelling": job.cancelling, "progress": job.progress()}
        silent = 0 if state != told else silent + 1
        if not silent:
            yield "progress", state
        elif silent % _SILENCE == 0:
            yield None
        told = state
        if jobs.stopped(_LOOK):
            return
        job = jobs.get(job.id)
    yield "done", job.as_json()
