"""Endpoints of documents: questions, lists, single documents and their parts."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from flask import Response, request

from agentformer.access.grant import Grant
from agentformer.api.models import ResponseModel
from agentformer.api.models import documents as models
from agentformer.api.operations import Operation, Operations
from agentformer.api.response import EVENT_STREAM, answer_stream, reply
from agentformer.errors import NotFound, TooLarge
from agentformer.factory import AgentFormer
from agentformer.rag.documents import Document
from agentformer.tools.result_json import answer_json, document_json
from agentformer.types import MemoryEntry, Scope

_DOCUMENT = "/api/rag/documents/{document_id}"
_TAG = "documents"
_BYTES = "application/octet-stream"
# Media types of originals. All others, such as HTML, are sent as bytes, so that no browser runs an uploaded file.
_SAFE_TYPES = (
    _BYTES,
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "text/markdown",
    "text/plain",
)
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


def add_questions(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoint that answers questions: as one JSON document, or as a stream of events."""
    max_chars = af.settings.max_question_chars

    @operations.declare(
        Operation(
            method="POST",
            path="/api/rag/query",
            right="read",
            body=models.Question,
            returns={200: (models.Answer, EVENT_STREAM)},
            errors=(503,),
            uses_model=True,
            tag=_TAG,
            tool="rag_query",
        )
    )
    def query(grant: Grant, body: models.Question) -> Response:
        """Answer a question from the documents, with citations.

        As server-sent events: `token` with a `text` for each part of the answer, `error` with a problem if the model is
        interrupted, and last `answer` with the same fields as the JSON answer. An error of the question itself is a
        problem document before the first event.
        """
        if len(body.question) > max_chars:
            size = len(body.question)
            raise TooLarge("max_question_chars", f"the question has {size} characters; the limit is {max_chars}")
        arguments: dict[str, Any] = {
            "top_k": body.top_k,
            "namespace": grant.namespace(body.namespace),
            "filters": body.filters,
            "max_tokens": body.max_tokens,
        }
        if accepts_events() if body.stream is None else body.stream:
            return answer_stream(af.rag.stream(body.question, **arguments))
        return reply(answer_json(af.rag.query(body.question, **arguments)))


def add_documents(operations: Operations, af: AgentFormer) -> None:
    """Declare the endpoints of uploaded documents."""
    _add_list(operations, af)
    _add_get(operations, af)
    _add_delete(operations, af)
    _add_original(operations, af)
    _add_parts(operations, af)


def accepts_events() -> bool:
    """Return True if the header `Accept` prefers server-sent events to JSON."""
    return request.accept_mimetypes.best_match(["application/json", EVENT_STREAM]) == EVENT_STREAM


def attachment(name: str) -> str:
    """Return a `Content-Disposition` header (RFC 6266) for a file that browsers save and do not show.

    It has the name in UTF-8, after one in ASCII for old clients. Characters that are not printable are removed: a mark
    of direction could show `exe.pdf` as `fdp.exe`.
    """
    file_name = "".join(ch for ch in name.rpartition("/")[2] if ch.isprintable()) or "document"
    ascii_only = unicodedata.normalize("NFKD", file_name).encode("ascii", "ignore").decode()
    plain = "".join(ch if ch.isalnum() or ch in " ._-()+" else "_" for ch in ascii_only)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"


def _add_list(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="GET",
            path="/api/rag/documents",
            right="read",
            query=models.DocumentsParameters,
            returns={200: models.Documents},
            tag=_TAG,
            tool="rag_list",
        )
    )
    def documents(grant: Grant, query: models.DocumentsParameters) -> Response:
        """List the documents of a namespace, oldest first."""
        namespace = grant.namespace(query.namespace)
        page = af.rag.page_of_documents(namespace=namespace, after=query.after, limit=query.limit)
        items = [document_json(document) for document in page]
        return reply({"documents": items, "next": _next(items, query.limit)})


def _add_get(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="GET",
            path=_DOCUMENT,
            right="read",
            query=models.DocumentParameters,
            returns={200: models.Document},
            tag=_TAG,
        )
    )
    def document(grant: Grant, query: models.DocumentParameters, document_id: str) -> Response:
        """Return a document's status and metadata."""
        return reply(document_json(_find(af, grant, document_id, query.namespace)))


def _add_delete(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="DELETE",
            path=_DOCUMENT,
            right="write",
            query=models.DocumentParameters,
            returns={204: None},
            tag=_TAG,
            tool="memory_delete",
        )
    )
    def delete(grant: Grant, query: models.DocumentParameters, document_id: str) -> Response:
        """Delete a document, its parts and its original."""
        document = _find(af, grant, document_id, query.namespace)
        try:
            af.rag.remove(document.id, namespace=document.namespace)
        except NotFound:  # deleted by another client in the meantime
            raise _not_found(document_id) from None
        return Response(status=204)


def _add_original(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        Operation(
            method="GET",
            path=f"{_DOCUMENT}/content",
            right="read",
            query=models.DocumentParameters,
            returns={200: _SAFE_TYPES},
            tag=_TAG,
        )
    )
    def content(grant: Grant, query: models.DocumentParameters, document_id: str) -> Response:
        """Return the original file.

        Always as an attachment with the document's name, and never with a media type that a browser executes.
        """
        document = _find(af, grant, document_id, query.namespace)
        try:
            data = af.rag.original(document.id, namespace=document.namespace)
        except NotFound:
            raise NotFound("the original of this document is not stored") from None
        headers = {"Content-Disposition": attachment(document.name), **_SAFE_HEADERS}
        media_type = document.media_type if document.media_type in _SAFE_TYPES else _BYTES
        return Response(data, headers=headers, content_type=media_type)


def _add_parts(operations: Operations, af: AgentFormer) -> None:
    def parts(grant: Grant, query: models.PartsParameters, document_id: str, kind: str) -> Sequence[MemoryEntry]:
        document = _find(af, grant, document_id, query.namespace)
        scope = Scope(document.namespace, kinds=(kind,), document_id=document.id)
        return af.backend.list(scope, after=query.after, limit=query.limit)

    def operation(name: str, model: type[ResponseModel]) -> Operation:
        path = f"{_DOCUMENT}/{name}"
        query = models.PartsParameters
        return Operation(method="GET", path=path, right="read", query=query, returns={200: model}, tag=_TAG)

    @operations.declare(operation("chunks", models.Chunks))
    def chunks(grant: Grant, query: models.PartsParameters, document_id: str) -> Response:
        """List the passages of a document, in order."""
        items = [_chunk_json(entry) for entry in parts(grant, query, document_id, "chunk")]
        return reply({"chunks": items, "next": _next(items, query.limit)})

    @operations.declare(operation("pages", models.DocumentPages))
    def pages(grant: Grant, query: models.PartsParameters, document_id: str) -> Response:
        """List the texts of a document's pages, to which citations refer."""
        items = [_page_json(entry) for entry in parts(grant, query, document_id, "page")]
        return reply({"pages": items, "next": _next(items, query.limit)})


def _find(af: AgentFormer, grant: Grant, document_id: str, namespace: str | None) -> Document:
    """Return a document. Raises `NotFound`, with the same message for one that the grant does not reach."""
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


def _next(items: Sequence[dict[str, Any]], limit: int) -> str | None:
    return items[-1]["id"] if len(items) == limit else None


def _chunk_json(entry: MemoryEntry) -> dict[str, Any]:
    source = entry.source
    return {
        "id": entry.id,
        "document_id": source.document_id if source else "",
        "document": source.name if source else "",
        "page": source.page if source else None,
        "label": source.label if source else "",
        "start": source.start if source else 0,
        "end": source.end if source else len(entry.content),
        "content": entry.content,
        "title": entry.title,
        "context": entry.context,
        "metadata": dict(entry.metadata),
    }


def _page_json(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "number": entry.source.page if entry.source else 0,
        "label": entry.source.label if entry.source else "",
        "text": entry.content,
        **{name: entry.metadata[name] for name in ("status", "reason", "method")},
    }
