"""Endpoints of the documents that were uploaded: list, look, take out the original, delete."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.models import documents as models
from agentformer.api.operations import Operations
from agentformer.api.response import reply
from agentformer.errors import NotFound
from agentformer.factory import AgentFormer
from agentformer.rag.documents import Document
from agentformer.tools.shapes import document_json
from agentformer.types import MemoryEntry, Scope

_ONE = "/api/rag/documents/{document_id}"
_TAG = "documents"
_BYTES = "application/octet-stream"
# Of originals. Others, HTML before all, are plain bytes, so that no browser runs what somebody uploaded.
_HARMLESS = (
    _BYTES,
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "text/markdown",
    "text/plain",
)
_INERT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


def add_documents(operations: Operations, af: AgentFormer) -> None:
    _add_list(operations, af)
    _add_one(operations, af)
    _add_original(operations, af)
    _add_parts(operations, af)


def _add_list(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "GET",
        "/api/rag/documents",
        right="read",
        query=models.DocumentsAsked,
        returns={200: models.Documents},
        tag=_TAG,
        tool="rag_list",
    )
    def documents(grant: Grant, query: models.DocumentsAsked) -> Response:
        """List the documents of a namespace, oldest first."""
        namespace = grant.namespace(query.namespace)
        page = af.rag.page_of_documents(namespace=namespace, after=query.after, limit=query.limit)
        told = [document_json(document) for document in page]
        return reply({"documents": told, "next": _next(told, query.limit)})


def _add_one(operations: Operations, af: AgentFormer) -> None:
    @operations.declare("GET", _ONE, right="read", query=models.InNamespace, returns={200: models.Document}, tag=_TAG)
    def document(grant: Grant, query: models.InNamespace, document_id: str) -> Response:
        """Tell what is known of a document."""
        return reply(document_json(_seen(af, grant, document_id, query.namespace)))

    @operations.declare(
        "DELETE",
        _ONE,
        right="write",
        query=models.InNamespace,
        returns={204: None},
        tag=_TAG,
        tool="memory_delete",
    )
    def delete(grant: Grant, query: models.InNamespace, document_id: str) -> Response:
        """Delete a document with everything made from it, and its original."""
        found = _seen(af, grant, document_id, query.namespace)
        try:
            af.rag.remove(found.id, namespace=found.namespace)
        except NotFound:  # somebody else was faster
            raise _unknown(document_id) from None
        return Response(status=204)


def _add_original(operations: Operations, af: AgentFormer) -> None:
    @operations.declare(
        "GET", f"{_ONE}/content", right="read", query=models.InNamespace, returns={200: _HARMLESS}, tag=_TAG
    )
    def content(grant: Grant, query: models.InNamespace, document_id: str) -> Response:
        """Give the original, as it was uploaded.

        Always as an attachment under the document's name, and never with a type that a browser would run.
        """
        found = _seen(af, grant, document_id, query.namespace)
        try:
            data = af.rag.original(found.id, namespace=found.namespace)
        except NotFound:
            raise NotFound("the original of this document is not kept") from None
        headers = {"Content-Disposition": attachment(found.name), **_INERT}
        kind = found.media_type if found.media_type in _HARMLESS else _BYTES
        return Response(data, headers=headers, content_type=kind)


def _add_parts(operations: Operations, af: AgentFormer) -> None:
    def parts(grant: Grant, query: models.PartsAsked, document_id: str, kind: str) -> Sequence[MemoryEntry]:
        found = _seen(af, grant, document_id, query.namespace)
        scope = Scope(found.namespace, kinds=(kind,), document_id=found.id)
        return af.backend.list(scope, after=query.after, limit=query.limit)

    @operations.declare(
        "GET", f"{_ONE}/chunks", right="read", query=models.PartsAsked, returns={200: models.Chunks}, tag=_TAG
    )
    def chunks(grant: Grant, query: models.PartsAsked, document_id: str) -> Response:
        """List the passages that a document was cut into, in their order."""
        told = [_chunk(entry) for entry in parts(grant, query, document_id, "chunk")]
        return reply({"chunks": told, "next": _next(told, query.limit)})

    @operations.declare(
        "GET", f"{_ONE}/pages", right="read", query=models.PartsAsked, returns={200: models.DocumentPages}, tag=_TAG
    )
    def pages(grant: Grant, query: models.PartsAsked, document_id: str) -> Response:
        """List the texts of a document's pages, which citations refer to."""
        told = [_page(entry) for entry in parts(grant, query, document_id, "page")]
        return reply({"pages": told, "next": _next(told, query.limit)})


def attachment(name: str) -> str:
    """`Content-Disposition` (RFC 6266) of a file that is saved and not shown: its name in UTF-8, and before it
    one in ASCII for old clients. Without what is not printed: a mark of direction shows `exe.pdf` for `fdp.exe`."""
    last = "".join(ch for ch in name.rpartition("/")[2] if ch.isprintable()) or "document"
    ascii_only = unicodedata.normalize("NFKD", last).encode("ascii", "ignore").decode()
    plain = "".join(ch if ch.isalnum() or ch in " ._-()+" else "_" for ch in ascii_only)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(last, safe='')}"


def _seen(af: AgentFormer, grant: Grant, document_id: str, namespace: str | None) -> Document:
    """The document, if the grant reaches it. One that it does not reach looks like one that is not there."""
    within = None if namespace is None else grant.namespace(namespace)
    try:
        found = af.rag.document(document_id, namespace=within)
    except NotFound:
        raise _unknown(document_id) from None
    if not grant.reaches(found.namespace):
        raise _unknown(document_id)
    return found


def _unknown(document_id: str) -> NotFound:
    return NotFound(f"there is no document {document_id:.80}")


def _next(told: Sequence[dict[str, Any]], limit: int) -> str | None:
    return told[-1]["id"] if len(told) == limit else None


def _chunk(entry: MemoryEntry) -> dict[str, Any]:
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


def _page(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "number": entry.source.page if entry.source else 0,
        "label": entry.source.label if entry.source else "",
        "text": entry.content,
        **{name: entry.metadata[name] for name in ("status", "reason", "method")},
    }
