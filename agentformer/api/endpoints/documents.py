"""Endpoints to answer questions from documents, to list, read and delete documents, and to sync a folder."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Annotated, Any
from urllib.parse import quote

from flask import Response
from pydantic import Field

from agentformer.access.limits import TakenQuestion
from agentformer.access.permissions import Grant
from agentformer.api.models import Name, Namespace, fields_of
from agentformer.api.models import documents as models
from agentformer.api.models.requests import Metadata
from agentformer.api.operations import Router, Service
from agentformer.api.request import RequestModel, arguments_of, check_length
from agentformer.api.response import EVENT_STREAM, answer_stream, prefers_events, reply, reply_page
from agentformer.errors import NotFound
from agentformer.factory import AgentFormer
from agentformer.rag import folder_sync
from agentformer.rag.documents import Document, page_of
from agentformer.rag.folder_files import Problem
from agentformer.rag.removals import Removal
from agentformer.readers import ReadLimits, page_image
from agentformer.tools.document_tools import allowed_sources
from agentformer.tools.result_json import answer_json, document_json, passages_json, report_json, sync_json
from agentformer.types import Answer, AnswerEvent, MemoryEntry, Scope

_DOCUMENT = "/api/rag/documents/{document_id}"
_REMOVALS = "/api/rag/removals"
_BYTES = "application/octet-stream"
# Media types of originals. All others, such as HTML, are sent as bytes, so that no browser runs an uploaded file.
_SAFE_TYPES = (
    _BYTES,
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "text/markdown",
    "text/plain",
)
_MAX_PATH = 4_096  # characters
_LOCAL_EMBEDDERS = {"auto", "hashing", "minilm", "multilingual", "sbert"}
_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"

router = Router("documents")


def _is_slow(service: Service) -> bool:
    """Return whether a question counts as a slow request. The number of concurrent slow requests is limited. A
    question is slow if a language model is configured, or if an embedder on another server is configured or was used
    since the start. Otherwise, the answer consists of quotations and takes milliseconds."""
    settings = service.af.settings
    used = [name.removeprefix("embedder ") for name in service.af.usage() if name.startswith("embedder ")]
    providers = {spec.partition(":")[0] for spec in (settings.embedder, *used)}
    return bool(settings.llm_model) or not providers <= _LOCAL_EMBEDDERS


@router.route(
    "POST",
    "/api/rag/query",
    "rag_query",
    {200: (models.Answer, EVENT_STREAM)},
    errors=(404, 503, 507),
    uses_model=lambda service, body: _is_slow(service),
)
def query(service: Service, grant: Grant, body: models.Question) -> Response:
    """Answer a question from the documents and the memories, with citations.

    The answer can be streamed as server-sent events. Each event `token` contains the next part of the answer in the
    field `text`. If the language model fails, an event `error` describes the error. At the end, an event `answer`
    contains the same fields as the JSON answer. If the request is invalid, the response is a problem document and not a
    stream.
    """
    check_length("question", body.question, service.af.settings)
    arguments = _question_arguments(service, body, grant)
    rag, limits = service.af.rag, service.af.limits
    if prefers_events() if body.stream is None else body.stream:
        with limits.take_question(grant.allowance) as question:
            events = rag.stream(body.question, **arguments)
        return answer_stream(_unless_failed(events, question))
    with limits.take_question(grant.allowance) as question:
        answer = rag.query(body.question, **arguments)
        if answer.model_failed:
            question.give_back()
    return reply(answer_json(answer))


def _unless_failed(
    events: Generator[AnswerEvent, None, None], question: TakenQuestion
) -> Generator[AnswerEvent, None, None]:
    """Yield the events of an answer, and give the question back if the model failed."""
    with closing(events):
        for event in events:
            if isinstance(event, Answer) and event.model_failed:
                question.give_back()
            yield event


@router.route(
    "POST",
    "/api/rag/context",
    "rag_query",
    {200: models.PassageContext},
    errors=(404, 503),
    uses_model=lambda service, body: _is_slow(service),
)
def context(service: Service, grant: Grant, body: models.ContextQuestion) -> Response:
    """Return the passages that a language model needs to answer a question, within a limit of tokens.

    The best passages come first, with the text around them if the limit allows it. No language model is called. The
    field `text` can be put into a prompt.
    """
    check_length("question", body.question, service.af.settings)
    arguments = _question_arguments(service, body, grant)
    return reply(passages_json(service.af.rag.context(body.question, **arguments)))


def _question_arguments(
    service: Service, body: models.Question | models.ContextQuestion, grant: Grant
) -> dict[str, Any]:
    arguments = arguments_of(body, grant, exclude={"question", "stream"})
    arguments["where"] = service.removals.hide(arguments.get("where"), arguments["namespace"])
    return {**arguments, **allowed_sources(grant, body.sources if body.document_id is None else ["documents"])}


@router.route("GET", "/api/rag/documents", "rag_list", {200: models.Documents})
def documents(service: Service, grant: Grant, query: models.DocumentsParameters) -> Response:
    """List the documents of a namespace, or of one user in it, oldest first."""
    page = service.af.rag.page_of_documents(**arguments_of(query, grant))
    return reply_page("documents", [document_json(document) for document in page], query.limit)


@router.route("GET", _DOCUMENT, "document", {200: models.Document})
def document(service: Service, grant: Grant, query: models.DocumentParameters, document_id: str) -> Response:
    """Return the status and the metadata of a document."""
    return reply(document_json(_find(service.af, grant, document_id, query.namespace)))


@router.route("DELETE", _DOCUMENT, "memory_delete", {204: None, 202: models.Removal}, errors=(409,))
def delete(service: Service, grant: Grant, query: models.RemovalParameters, document_id: str) -> Response:
    """Delete a document, its passages and pages, and its original file.

    With `undo_seconds`, the document is hidden at once and deleted after this number of seconds, even if the client or
    the server stops in the meantime. Until then, `DELETE /api/rag/removals/{document_id}` keeps the document."""
    document = _find(service.af, grant, document_id, query.namespace)
    try:
        if query.undo_seconds:
            return reply(_removal_json(service.removals.add(document.id, query.undo_seconds)), 202)
        service.af.rag.remove(document.id, namespace=document.namespace)
    except NotFound:  # deleted by another client in the meantime
        raise _not_found(document_id) from None
    return Response(status=204)


@router.route("GET", _REMOVALS, "rag_list", {200: models.Removals})
def removals(service: Service, grant: Grant, query: models.DocumentNamespace) -> Response:
    """List the documents of a namespace that are hidden and are going to be deleted."""
    pending = service.removals.pending(grant.namespace(query.namespace))
    return reply({"removals": [_removal_json(removal) for removal in pending]})


@router.route("DELETE", f"{_REMOVALS}/{{document_id}}", "memory_delete", {204: None}, errors=(409,))
def keep(service: Service, grant: Grant, query: models.DocumentParameters, document_id: str) -> Response:
    """Keep a document that is going to be deleted: undo its removal. If a new version has replaced the document (see
    `on_conflict=replace-with-undo` of an upload), this new version is deleted.

    The response is 404 if the document is deleted already, and 409 if the document was uploaded again in the meantime.
    """
    service.removals.undo(_find(service.af, grant, document_id, query.namespace).id)
    return Response(status=204)


def _removal_json(removal: Removal) -> dict[str, Any]:
    state = {"seconds_left": round(removal.left, 1), "replaced_by": removal.replaced_by}
    return {"id": removal.id, "name": removal.name, **state}


@router.route("GET", f"{_DOCUMENT}/content", "document text", {200: _SAFE_TYPES})
def content(service: Service, grant: Grant, query: models.DocumentParameters, document_id: str) -> Response:
    """Return the original file of a document.

    A browser saves the file under the name of the document and does not show the file. A file that a browser could
    execute, such as HTML, has the media type `application/octet-stream`.
    """
    document = _find(service.af, grant, document_id, query.namespace)
    return file_response(_original(service.af, document), document.name, document.media_type)


@router.route("GET", f"{_DOCUMENT}/chunks", "document text", {200: models.Chunks})
def chunks(service: Service, grant: Grant, query: models.PartsParameters, document_id: str) -> Response:
    """List the passages of a document in the order of the text."""
    entries = _parts(service.af, grant, query, document_id, "chunk")
    return reply_page("chunks", [_chunk_json(entry) for entry in entries], query.limit)


@router.route("GET", f"{_DOCUMENT}/pages", "document text", {200: models.DocumentPages})
def pages(service: Service, grant: Grant, query: models.PartsParameters, document_id: str) -> Response:
    """List the pages of a document with the text of each page.

    The fields `start` and `end` of a citation are positions in the text of the cited page.
    """
    entries = _parts(service.af, grant, query, document_id, "page")
    items = [{"id": entry.id, **report_json(page_of(entry), leave_out=models.NOT_STORED)} for entry in entries]
    return reply_page("pages", items, query.limit)


@router.route("GET", f"{_DOCUMENT}/image", "document text", {200: models.PageImage}, errors=(422,), uses_model=True)
def image(service: Service, grant: Grant, query: models.ImageParameters, document_id: str) -> Response:
    """Return a page of a PDF document as an image, with the boxes of a quotation.

    The parameters `start` and `end` select the quotation in the text of the page. The response is 422 if the document
    is not a PDF or cannot be rendered; the client can then show the text of the page. The page is rendered in a
    sandboxed process."""
    document = _find(service.af, grant, document_id, query.namespace)
    parts = Scope(document.namespace, kinds=("page",), document_id=document.id, pages=(query.page,))
    stored = service.af.backend.list(parts, limit=1)
    if not stored:
        raise NotFound(f"the document has no page {query.page}")
    limits = ReadLimits.from_settings(service.af.settings)
    picture = page_image(
        _original(service.af, document),
        query.page,
        text=stored[0].content,
        start=query.start,
        end=query.end,
        limits=limits,
    )
    return reply({**picture._asdict(), "png": base64.b64encode(picture.png).decode()})


def _original(af: AgentFormer, document: Document) -> bytes:
    try:
        return af.rag.original(document.id, namespace=document.namespace)
    except NotFound:
        raise NotFound("the original file of this document is not stored; upload the document again") from None


def file_response(data: bytes, name: str, media_type: str = _BYTES) -> Response:
    """Return a response with the bytes of a file. A browser saves the file and does not show or execute it."""
    headers = {"Content-Disposition": attachment(name), "Content-Security-Policy": _POLICY}
    return Response(data, headers=headers, content_type=media_type if media_type in _SAFE_TYPES else _BYTES)


def attachment(name: str) -> str:
    """Return a header `Content-Disposition` (RFC 6266) with which a browser saves a file and does not show it. The
    header contains the file name in UTF-8, and in ASCII for old clients. Characters that are not printable are removed:
    a character that reverses the direction of text could show `fdp.exe` as `exe.pdf`."""
    file_name = "".join(ch for ch in name.rpartition("/")[2] if ch.isprintable()) or "document"
    ascii_only = unicodedata.normalize("NFKD", file_name).encode("ascii", "ignore").decode()
    plain = "".join(ch if ch.isalnum() or ch in " ._-()+" else "_" for ch in ascii_only)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"


def _parts(
    af: AgentFormer, grant: Grant, query: models.PartsParameters, document_id: str, kind: str
) -> Sequence[MemoryEntry]:
    document = _find(af, grant, document_id, query.namespace)
    pages = () if query.page is None else (query.page,)
    scope = Scope(document.namespace, kinds=(kind,), document_id=document.id, pages=pages)
    return af.backend.list(scope, after=query.after, limit=query.limit)


def _find(af: AgentFormer, grant: Grant, document_id: str, namespace: str | None) -> Document:
    """Return the document with this id. Raises `NotFound` if there is no such document, or if the grant does not allow
    its namespace. Both errors have the same message, so that a client cannot find out which ids exist."""
    within = None if namespace is None else grant.namespace(namespace)
    try:
        document = af.rag.document(document_id, namespace=within)
    except NotFound:
        raise _not_found(document_id) from None
    if not grant.reaches(document.namespace):
        raise _not_found(document_id)
    return document


def _not_found(document_id: str) -> NotFound:
    return NotFound(f"there is no document {document_id:.80}")


def _chunk_json(entry: MemoryEntry) -> dict[str, Any]:
    source = entry.source
    assert source is not None  # `_parts` selects by the document of the source
    return {
        "id": entry.id,
        "document_id": source.document_id,
        "document": source.name,
        "page": source.page,
        "label": source.label,
        "start": source.start,
        "end": source.end,
        "content": entry.content,
        "title": entry.title,
        "context": entry.context,
        "metadata": dict(entry.metadata),
    }


class SyncRequest(RequestModel):
    """A folder to sync."""

    folder: Annotated[str, Field(min_length=1, max_length=_MAX_PATH)] = Field(
        description="The absolute path of a folder on the server, below a folder of the setting `sync_roots`.",
        examples=["/srv/notes"],
    )
    namespace: Namespace = None
    user_id: Name | None = Field(
        default=None, description="The user to whom the documents of the folder belong. By default, they have no user."
    )
    metadata: Metadata | None = Field(
        default=None, description="A JSON object that is stored with new and changed documents."
    )
    delete: bool = Field(
        default=False,
        description="Remove the documents of missing files even if the folder or more than half of its files are gone.",
    )
    seconds: Annotated[float, Field(gt=0, le=60)] = Field(
        default=20.0,
        description="The number of seconds after which the sync pauses. Send the request again until `left` is 0.",
    )


class SyncProblem(fields_of(Problem)):  # type: ignore[misc]
    """A file that is not read, and the reason."""


_Problems = list[SyncProblem]
_SyncFields: Any = fields_of(folder_sync.SyncReport, renamed=list[list[str]], skipped=_Problems, failed=_Problems)


class SyncReport(_SyncFields):  # type: ignore[misc]
    """The result of a sync. The names are paths relative to the folder."""

    counts: dict[str, int] = Field(description="The length of each list of this report.")


@router.route("POST", "/api/rag/sync", "rag_sync", {200: SyncReport}, errors=(409, 429, 507), uses_model=True)
def sync(service: Service, grant: Grant, body: SyncRequest) -> Response:
    """Make the documents of a folder on the server equal to its files.

    New and changed files are stored, files that were moved inside the folder keep their vectors, and the documents of
    files that are gone are removed. Files that have not changed are not read. Only folders below the folders of the
    setting `sync_roots` are allowed; for another folder, the response is 403.
    """
    return reply(sync_json(service.af.rag.sync_allowed(**arguments_of(body, grant))))
