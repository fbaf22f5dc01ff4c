"""The endpoint `POST /api/rag/upload`, which makes documents from files, at once or in a job."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from os import SEEK_END
from pathlib import PureWindowsPath
from typing import IO, Annotated, Any, BinaryIO, Literal, cast

from flask import Response, request, url_for
from pydantic import Field
from pydantic.config import JsonDict
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType
from werkzeug.formparser import FormDataParser

from agentformer.access.permissions import PERMISSIONS, Grant
from agentformer.ahead import AHEAD_BYTES, one_ahead
from agentformer.api.auth import FORM_BYTES
from agentformer.api.endpoints.jobs import JOB
from agentformer.api.endpoints.jobs import Job as JobModel
from agentformer.api.models import Name, Namespace, ResponseModel
from agentformer.api.models.documents import Document as DocumentModel
from agentformer.api.operations import Router, Service
from agentformer.api.request import BoundedBody, ParameterModel
from agentformer.api.response import reply
from agentformer.errors import AgentFormerError, Conflict, InvalidInput, StoreError, TooLarge, is_passing, store_failure
from agentformer.factory import AgentFormer
from agentformer.jobs.queue import Jobs
from agentformer.jobs.store import Job, Progress, Task, any_usable
from agentformer.rag.document_store import Retire, Upload
from agentformer.rag.documents import Document
from agentformer.rag.removals import Removals
from agentformer.rag.uploads import OnConflict, Origin, safe_name
from agentformer.records import fields
from agentformer.settings import Settings
from agentformer.tools.document_tools import upload_json
from agentformer.tools.rag_tool import RAGTool
from agentformer.tools.result_json import document_json
from agentformer.types import Stopped

UNDO_SECONDS = 30  # for which the former version of a document can be restored
_FILE = "file"  # the name of the parts that are files
_ASYNC = "respond-async"
_PREFER = {"Prefer": f"With `{_ASYNC}` (RFC 7240), the response is 202 at once, and a job reads the files."}
_MAX_FIELDS = 20  # parts of the form that are not files; `UploadForm` has fewer
_MAX_FIELD_BYTES = 500_000  # of each part that is not a file; these parts are held in memory
_MAX_METADATA = 100_000  # characters; in UTF-8, they have fewer bytes than `_MAX_FIELD_BYTES`
_MAX_PASSWORD = 1000  # characters; PDF's own limit is 127 bytes
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_OBJECT: JsonDict = {"contentMediaType": "application/json", "contentSchema": {"type": "object"}}

router = Router("documents")


class UploadForm(ParameterModel):
    """Form fields that apply to all files of an upload."""

    namespace: Namespace = None
    user_id: Name | None = Field(
        default=None,
        description="The user to whom the documents belong. An upload of another user, or without a user, neither "
        "replaces nor finds them.",
    )
    metadata: Annotated[str, Field(max_length=_MAX_METADATA, json_schema_extra=_OBJECT)] | None = Field(
        default=None,
        description="A JSON object. A question can select documents by these values (see `metadata` of a question).",
        examples=['{"site": "north"}'],
    )
    password: Annotated[str, Field(max_length=_MAX_PASSWORD)] | None = Field(
        default=None, description="The password of encrypted files. The password is not stored."
    )
    on_conflict: OnConflict | Literal["replace-with-undo"] = Field(
        default="replace",
        description="What to do if a document of the same name has other content: `replace` this document, replace it "
        f"and keep the former version hidden for {UNDO_SECONDS} seconds (`replace-with-undo`; "
        "`DELETE /api/rag/removals/{document_id}` with the id in `replaced` then restores the former version), store "
        "the file under a new name such as `report (2).pdf` (`keep-both`), or refuse the file (`fail`).",
    )


class Uploaded(ResponseModel):
    """The result of each file, in the order of the files in the request."""

    documents: list[DocumentModel]


def document_removals(af: AgentFormer) -> Removals:
    """Return the removals of the documents of a memory. They are not started."""
    return Removals(af.backend, lambda document, version: af.rag.remove(document, expected_version=version))


def upload_jobs(af: AgentFormer, removals: Removals) -> Jobs:
    """Start and return the queue of the upload jobs of a memory. Unfinished jobs of an earlier process continue.
    `removals` hides the documents that are replaced with an undo."""
    settings, ingest = af.settings, _JobIngest(af, removals)
    jobs = Jobs(
        settings.index_dir,
        af.originals.folder,
        ingest,
        most=settings.max_jobs,
        days=settings.job_days,
        shared=af.shared_jobs,
        former_dir=settings.upload_dir,
    )
    jobs.start()
    return jobs


@contextmanager
def _upload_slot(service: Service) -> Iterator[None]:
    """Limit the number of concurrent uploads. The current request counts as an upload until the end of the `with`
    block. Its body is read at the beginning of the block. Raises `Busy` if too many uploads are in progress."""
    with service.uploads.reserve(), nullcontext() if _prefers_job() else service.threads.reserve():
        read_multipart(service.af.settings)
        yield


@router.route(
    "POST",
    "/api/rag/upload",
    "rag_upload",
    {201: Uploaded, 202: JobModel, 422: Uploaded},
    headers=_PREFER,
    around=_upload_slot,
    errors=(409, 429, 507),
)
def upload(service: Service, grant: Grant, form: UploadForm) -> Response:
    """Upload files. Each file becomes a document.

    The response is 201 if at least one file is stored as a document, and otherwise 422. Both responses contain the
    status and the reason of each file. A file whose bytes are stored already under the same name is `unchanged`. But if
    the request has other metadata, a new version with these metadata replaces the document.

    If a document of the same name has other bytes, `on_conflict` decides whether the new file replaces the document, is
    stored under another name, or is refused. `replaced` is the id of a replaced document. `on_conflict=fail` needs the
    right to read; the response is 409 if all files conflict. If files of one request have the same name, all of them
    are kept, and the names of the further files get numbers. A key without the right to read gets no ids and no data of
    earlier documents. With the header `Prefer: respond-async`, the response is 202 with a job, and the header
    `Location` is the URL of the job."""
    rag, settings = service.af.rag, service.af.settings
    namespace = grant.namespace(form.namespace)
    metadata = fields.stored_metadata(fields.json_object("metadata", form.metadata)) if form.metadata else None
    files = files_of_request(settings)
    if form.on_conflict == "fail":
        PERMISSIONS["rag_upload unless stored"].require(grant)
    names = tuple(file_name(file.filename) for file in files)
    task = Task(namespace, names, metadata, form.on_conflict, grant.key_id, form.user_id or "")
    streams = [cast(BinaryIO, file.stream) for file in files]
    if _prefers_job():
        job = service.jobs.submit(task, streams, form.password)
        location = url_for(f".{JOB}", job_id=job.id)
        return reply(job.as_json(), 202, {"Location": location, "Preference-Applied": _ASYNC})
    documents, conflicts = [], []

    def prepare(number: int, stopped: Stopped | None) -> Upload:
        return _prepare(rag, service.removals, task, number, streams[number], form.password, stopped)

    # Without the right to read, a caller must not learn from the time which files are stored: these are not read ahead.
    ahead = AHEAD_BYTES if grant.may("read") else -1
    with closing(one_ahead(range(len(names)), prepare, lambda number: _size(streams[number]) <= ahead)) as prepared:
        for number, upload in prepared:
            try:
                document = _ingest(rag, task, number, upload)
            except Conflict as error:
                conflicts.append(error)
                document = _failed(task, names[number], str(error), "conflict")
            documents.append(upload_json(rag, document, grant, names[number], metadata, form.password))
    if len(conflicts) == len(documents):
        raise conflicts[0]
    return reply({"documents": documents}, 201 if any_usable(documents) else 422)


class _JobIngest:
    """Ingests the files of a job. If one file fails, the other files are still ingested."""

    def __init__(self, af: AgentFormer, removals: Removals) -> None:
        self._af = af
        self._removals = removals

    def prepare(self, job: Job, number: int, file: BinaryIO, password: str | None, stopped: Stopped | None) -> Upload:
        """Return the upload of a file of the job; see `_prepare`."""
        return _prepare(self._af.rag, self._removals, job.task, number, file, password, stopped)

    def ingest(self, job: Job, name: str, prepared: Callable[[], Upload], progress: Progress) -> Mapping[str, Any]:
        """Ingest one file, and return its document as JSON. If this fails, the document has the status `failed` and a
        `reason_code`: "invalid" for `InvalidInput` (see `_ingest`), "conflict" for `Conflict`, and "server" for all
        other errors, such as `KeyFull`. Raises `StoreError`, after which the worker tries the job again."""
        try:
            number = len(job.documents)  # the files before this one have results
            with ExitStack() as reserved:

                def admitted() -> Upload:  # called in `_ingest`, which catches `InvalidInput` of `prepared`
                    upload = prepared()  # has the number of bytes to reserve, until the document is stored
                    allowance = self._af.keys.allowance(job.task.key_id)
                    reserved.enter_context(self._af.limits.reserve(allowance, len(upload.data)))
                    return upload

                return document_json(_ingest(self._af.rag, job.task, number, admitted, progress))
        except StoreError:
            raise
        except AgentFormerError as error:  # an upload without a job would respond with this error
            code = "conflict" if isinstance(error, Conflict) else "server"
            return document_json(_failed(job.task, name, str(error), code))

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        return document_json(_failed(job.task, name, reason, "server"))


def _prepare(
    rag: RAGTool,
    removals: Removals,
    task: Task,
    number: int,
    file: BinaryIO,
    password: str | None,
    stopped: Stopped | None,
) -> Upload:
    """Return the file `number` of an upload for `_ingest`. If an earlier file of the upload has the same name, both
    files are kept. With `stopped`, the text of the file is read, too. Raises `InvalidInput` if the file or its name is
    invalid."""
    name = task.names[number]
    conflict: OnConflict | Literal["replace-with-undo"] = task.on_conflict
    conflict = "keep-both" if name in task.names[:number] else conflict
    retire: Retire | None = None
    if conflict == "replace-with-undo":
        conflict, retire = "replace", partial(removals.replace, seconds=UNDO_SECONDS)
    if not name:  # else the document would get the name of the job's temporary file
        raise InvalidInput("name", "is missing; give the file a name, such as report.pdf")
    return rag.prepare(
        file,
        name=name,
        namespace=task.namespace,
        user_id=task.user_id or None,
        metadata=task.metadata,
        password=password,
        origin=Origin(),
        on_conflict=conflict,
        retire=retire,
        stopped=stopped,
    )


def _ingest(
    rag: RAGTool, task: Task, number: int, prepared: Callable[[], Upload], progress: Progress | None = None
) -> Document:
    """Ingest the file `number` of an upload, and return its document. If the file or its name is invalid, the document
    has the status `failed`."""
    try:
        return rag.put(prepared(), progress)
    except InvalidInput as error:
        return _failed(task, task.names[number], str(error), "invalid")


def _size(file: BinaryIO) -> int:
    size = file.seek(0, SEEK_END)
    file.seek(0)
    return size


def _failed(task: Task, name: str, reason: str, code: str) -> Document:
    given = {"metadata": task.metadata or {}, "user_id": task.user_id or None}
    return Document(name, task.namespace, "failed", reason, reason_code=code, **given)  # type: ignore[arg-type]


def _prefers_job() -> bool:
    """Return True if the header `Prefer` contains `respond-async`. Commas separate the preferences in this header. A
    preference is case-insensitive, and may have a value and parameters."""
    header = ",".join(request.headers.getlist("Prefer"))
    names = (item.partition(";")[0].partition("=")[0].strip().lower() for item in header.split(","))
    return _ASYNC in names


def file_name(path: str | None) -> str:
    """Return the name for a file of the form, or "" if the file has no name. A relative path keeps its folders. Of an
    absolute path, only the last part is used, because the folders belong to the computer of the client."""
    name = path or ""
    if name.startswith(("/", "\\")) or PureWindowsPath(name).drive:
        name = name.replace("\\", "/").rpartition("/")[2]
    try:
        return safe_name(name)
    except InvalidInput:
        return ""


def read_multipart(settings: Settings) -> None:
    """Read the form in the body of the current request. Large files are stored on disk until the request ends.

    Raises `InvalidInput` for an invalid form, `TooLarge` for an exceeded limit, `StoreFull` if the disk is full, and
    `UnsupportedMediaType` if the body is not a form.
    """
    if request.mimetype != "multipart/form-data":
        if not request.mimetype and not request.content_length:
            raise _no_file()
        raise UnsupportedMediaType("send the files as multipart/form-data, in parts named 'file'")
    if not request.mimetype_params.get("boundary"):
        raise InvalidInput("Content-Type", "has no boundary; let your HTTP library write this header")
    request.form_data_parser_class = _Parser
    request.max_form_memory_size = _MAX_FIELD_BYTES
    request.max_form_parts = settings.max_upload_files + _MAX_FIELDS
    try:
        request.files  # noqa: B018 (reads the body)
    except RequestEntityTooLarge:
        raise _too_large(settings) from None
    except ValueError as error:
        raise InvalidInput("body", f"is not valid multipart/form-data: {str(error)[:120]}") from None
    except OSError as error:
        if error.errno in _DISK_FULL or is_passing(error):
            advice = "free some disk space for temporary files"
            raise store_failure("the upload cannot be stored", error, advice) from error
        raise
    files_of_request(settings)  # now, because the validation of the form would report a file without a name as a field


def files_of_request(settings: Settings) -> list[FileStorage]:
    """Return the files in the form. Raises `InvalidInput` if there is no file, or if a file has a field name other than
    `file`. Raises `TooLarge` if there are too many files."""
    if _FILE in request.form:
        raise InvalidInput(_FILE, "must be a file; add a filename to this part of the form")
    if unknown := next((name for name in request.files if name != _FILE), None):
        raise InvalidInput(unknown[:80], f"is not a known name; send each file in a part named '{_FILE}'")
    files = request.files.getlist(_FILE)
    if not files:
        raise _no_file()
    _check_count(len(files), settings.max_upload_files)
    return files


class _Parser(FormDataParser):
    """A parser of forms that raises an error for an invalid body. The parser of Werkzeug ignores such an error. Raises
    `TooLarge` if there are too many files."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named, silent=False)
        self._open, self._files = self.stream_factory, 0
        self.stream_factory = self._open_counted

    def _open_counted(self, *arguments: Any, **named: Any) -> IO[bytes]:
        self._files += 1
        _check_count(self._files, (self.max_form_parts or 0) - _MAX_FIELDS)
        return self._open(*arguments, **named)


def _check_count(files: int, limit: int) -> None:
    if files > limit:
        raise TooLarge("max_upload_files", f"the upload has more than {limit} files; send at most {limit} together")


def _too_large(settings: Settings) -> TooLarge:
    """Return an error that names the exceeded limit, because the error of Werkzeug does not name the limit."""
    max_bytes = settings.max_file_bytes + FORM_BYTES
    body = request.environ["wsgi.input"]
    if (request.content_length or 0) > max_bytes or (isinstance(body, BoundedBody) and body.too_long):
        message = f"an upload may have at most {max_bytes} bytes; send fewer files, or raise the setting max_file_bytes"
        return TooLarge("max_file_bytes", message)
    message = (
        f"a field has more than {_MAX_FIELD_BYTES} bytes, or there are more than {_MAX_FIELDS} fields; send less data"
    )
    return TooLarge("max_field_bytes", message)


def _no_file() -> InvalidInput:
    return InvalidInput(_FILE, "is missing; send multipart/form-data with one or more parts named 'file'")
