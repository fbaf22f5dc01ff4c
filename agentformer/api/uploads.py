"""`POST /api/rag/upload`: files become documents at once, or as a job."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from flask import Response, json, request, url_for

from agentformer.access.grant import Grant
from agentformer.api.jobs import ONE_JOB
from agentformer.api.models import jobs as job_models
from agentformer.api.models import uploads as models
from agentformer.api.multipart import files_of_request, read_multipart
from agentformer.api.operations import Operations
from agentformer.api.response import reply
from agentformer.errors import AgentFormerError, Busy, InvalidInput, StoreError
from agentformer.factory import AgentFormer
from agentformer.jobs.queue import Jobs, Progress
from agentformer.jobs.store import Job, Task, any_usable
from agentformer.rag.documents import Document
from agentformer.records import fields
from agentformer.tools.document_tools import upload_json
from agentformer.tools.rag_tool import RAGTool
from agentformer.tools.shapes import document_json

_ASYNC = "respond-async"
_PREFER = {"Prefer": f"`{_ASYNC}` (RFC 7240): answer 202 at once, and bring the files in as a job."}
_LONGEST_NAME = 255


def upload_jobs(af: AgentFormer) -> Jobs:
    """The jobs of a memory; what an earlier process has left goes on."""
    settings = af.settings
    jobs = Jobs(settings.index_dir, settings.upload_dir, _Bring(af.rag), most=settings.max_jobs, days=settings.job_days)
    jobs.start()
    return jobs


def add_uploads(operations: Operations, af: AgentFormer, jobs: Jobs) -> None:
    slots = threading.BoundedSemaphore(af.settings.max_uploads)
    bring = _Bring(af.rag)

    @contextmanager
    def slot() -> Iterator[None]:
        """One of the uploads that this process takes at once, from before the body is read."""
        if not slots.acquire(blocking=False):
            raise Busy("max_uploads", f"{af.settings.max_uploads} uploads are under way here; send it again later")
        try:
            with nullcontext() if _wants_job() else operations.room.place():  # a job waits for its model elsewhere
                read_multipart(af.settings)
                yield
        finally:
            slots.release()

    @operations.declare(
        "POST",
        "/api/rag/upload",
        right="write",
        form=models.UploadForm,
        headers=_PREFER,
        around=slot,
        returns={201: models.Uploaded, 202: job_models.Job, 422: models.Uploaded},
        faults=(409, 429, 507),
        tag="documents",
        tool="rag_upload",
    )
    def upload(grant: Grant, form: models.UploadForm) -> Response:
        """Upload documents.

        201 where at least one file became a document, 422 with the same body where none did; each file has its own
        status and reason. The same bytes again are `unchanged`; other bytes of the same name replace the document.
        A key that may not read is told no id, and nothing of what was there before.
        With `Prefer: respond-async` the answer is 202 with a job, which `Location` names.
        """
        namespace = grant.namespace(form.namespace)
        metadata = fields.metadata(_object("metadata", form.metadata))
        files = files_of_request(af.settings)
        task = Task(namespace, tuple(_plain_name(file.filename) for file in files), metadata)
        streams = [cast(BinaryIO, file.stream) for file in files]
        if _wants_job():
            return _accepted(jobs.submit(task, streams, form.password))
        documents = [
            upload_json(bring.one(task, name, stream, form.password), grant, name, metadata)
            for name, stream in zip(task.names, streams, strict=True)
        ]
        return reply({"documents": documents}, 201 if any_usable(documents) else 422)


class _Bring:
    """Brings a file in, at once or in a job. What is wrong with one does not stop the others."""

    def __init__(self, rag: RAGTool) -> None:
        self._rag = rag

    def ingest(
        self, job: Job, name: str, file: BinaryIO, password: str | None, progress: Progress
    ) -> Mapping[str, Any]:
        try:
            return document_json(self.one(job.task, name, file, password, progress))
        except StoreError:
            raise
        except AgentFormerError as error:  # that a request would have been answered with
            return self.failed(job, name, str(error))

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        return document_json(_failed(job.task, name, reason))

    def one(
        self, task: Task, name: str, file: BinaryIO, password: str | None, progress: Progress | None = None
    ) -> Document:
        try:
            if not name:  # else it would be called as the file is in which a job keeps it
                raise InvalidInput("name", "give the document a name, such as report.pdf")
            return self._rag.upload(
                file,
                name=name,
                namespace=task.namespace,
                metadata=task.metadata,
                password=password,
                progress=progress,
            )
        except InvalidInput as error:
            return _failed(task, name, str(error))


def _failed(task: Task, name: str, reason: str) -> Document:
    return Document(name, task.namespace, "failed", reason, metadata=task.metadata)


def _accepted(job: Job) -> Response:
    place = url_for(f".get {ONE_JOB}", job_id=job.id)
    return reply(job.as_json(), 202, {"Location": place, "Preference-Applied": _ASYNC})


def _wants_job() -> bool:
    """Preferences are separated by commas, may have values and parameters, and are known by any case."""
    given = ",".join(request.headers.getlist("Prefer"))
    names = (each.partition(";")[0].partition("=")[0].strip().lower() for each in given.split(","))
    return _ASYNC in names


def _plain_name(given: str | None) -> str:
    """The file's own name as the client gave it, without folders and what nobody can see."""
    name = PurePosixPath((given or "").replace("\\", "/")).name
    return "".join(letter for letter in name if letter.isprintable())[-_LONGEST_NAME:]


def _object(field: str, text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(field, "must be a JSON object")
    return value
