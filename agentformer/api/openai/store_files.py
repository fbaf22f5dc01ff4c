"""Endpoints for the files of a vector store, and for the search in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Response

from agentformer.access.permissions import Grant
from agentformer.api.openai import models
from agentformer.api.openai.files import upload_slot
from agentformer.api.openai.lookup import (
    NAMESPACE_HEADER,
    copies,
    digest_of,
    documents,
    file_id,
    find_store,
    home,
    no_file,
    page,
    page_json,
    reachable,
    seconds,
    store_documents,
    store_id,
)
from agentformer.api.operations import Router, Service
from agentformer.api.request import check_length
from agentformer.api.response import reply
from agentformer.errors import NotFound
from agentformer.memory.backends import all_entries
from agentformer.rag.kept_files import KeptFiles
from agentformer.rag.uploads import Origin
from agentformer.records.filters import parse
from agentformer.settings import Settings
from agentformer.types import FINDABLE, Hit, MemoryEntry, Scope

_STORE = "/v1/vector_stores/{vector_store_id}"
_FILES = f"{_STORE}/files"
_FILE = f"{_FILES}/{{file_id}}"

router = Router("openai vector stores")


@router.route(
    "POST",
    _FILES,
    "rag_upload unless stored",
    {200: models.StoreFile},
    headers=NAMESPACE_HEADER,
    around=upload_slot,
    errors=(409, 429, 507),
)
def add(service: Service, grant: Grant, body: models.AddedFile, vector_store_id: str) -> Response:
    """Add a file to a vector store, so that searches in it find the text of the file.

    The response comes when the file was read. If it has no usable text, the status is `failed`, and `last_error` says
    why. If the file is in the vector store already, only its attributes are changed.
    """
    home(grant)  # checks the header
    namespace = find_store(service, grant, vector_store_id)
    document = add_file(service, grant, namespace, body.file_id, body.attributes)
    return reply(_file_json(service.af.settings, document))


@router.route("GET", _FILES, "document", {200: models.StoreFiles})
def list_files(service: Service, grant: Grant, query: models.StoreFilesQuery, vector_store_id: str) -> Response:
    """List the files of a vector store."""
    namespace = find_store(service, grant, vector_store_id)
    found = {file_id(entry): entry for entry in store_documents(service, namespace)}
    items = [entry for entry in found.values() if query.filter in (None, _status(entry))]
    shown, more = page(items, query, file_id)
    return reply(page_json([_file_json(service.af.settings, entry) for entry in shown], more=more))


@router.route("GET", _FILE, "document", {200: models.StoreFile})
def retrieve(service: Service, grant: Grant, vector_store_id: str, file_id: str) -> Response:
    """Return the state of a file in a vector store."""
    return reply(_file_json(service.af.settings, _find(service, grant, vector_store_id, file_id)))


@router.route(
    "POST", _FILE, "rag_upload unless stored", {200: models.StoreFile}, around=upload_slot, errors=(409, 429, 507)
)
def update(service: Service, grant: Grant, body: models.FileChanges, vector_store_id: str, file_id: str) -> Response:
    """Replace the attributes of a file in a vector store."""
    document = _find(service, grant, vector_store_id, file_id)
    changed = add_file(service, grant, document.namespace, file_id, body.attributes or {})
    return reply(_file_json(service.af.settings, changed))


@router.route("DELETE", _FILE, "memory_delete", {200: models.Deleted}, errors=(409,))
def remove(service: Service, grant: Grant, vector_store_id: str, file_id: str) -> Response:
    """Remove a file from a vector store. The file itself stays."""
    namespace = find_store(service, grant, vector_store_id)
    found = store_documents(service, namespace, digest_of(file_id))
    if not found:
        raise no_file(file_id)
    for document in found:
        remove_file(service, grant, document)
    return reply({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


@router.route("GET", f"{_FILE}/content", "document text", {200: models.FileText})
def content(service: Service, grant: Grant, vector_store_id: str, file_id: str) -> Response:
    """Return the text of a file, one part for each page."""
    document = _find(service, grant, vector_store_id, file_id)
    scope = Scope(document.namespace, kinds=("page",), document_id=document.id)
    parts = [{"type": "text", "text": entry.content} for entry in all_entries(service.af.backend, scope)]
    return reply({"object": "vector_store.file_content.page", "data": parts, "has_more": False, "next_page": None})


@router.route("POST", f"{_STORE}/search", "rag_query", {200: models.SearchResults}, errors=(409,), uses_model=True)
def search(service: Service, grant: Grant, body: models.StoreSearch, vector_store_id: str) -> Response:
    """Search the text of the files in a vector store.

    The results are passages, best first. With several queries, a passage has the score of its best query.
    """
    namespace = find_store(service, grant, vector_store_id)
    queries = [body.query] if isinstance(body.query, str) else body.query
    for query in queries:
        check_length("query", query, service.af.settings)
    least = body.ranking_options.score_threshold if body.ranking_options else 0.0
    where = service.removals.hide(parse(body.filters, "filters"), namespace)
    scope: dict[str, Any] = {"namespace": namespace, "kinds": ("chunk",), "where": where}
    best: dict[str, Hit] = {}
    for query in queries:
        for hit in service.af.memory.search(query, limit=body.max_num_results, min_score=least, **scope):
            if hit.entry.id not in best or best[hit.entry.id].score < hit.score:
                best[hit.entry.id] = hit
    hits = sorted(best.values(), key=lambda hit: -hit.score)[: body.max_num_results]
    found = {entry.id: entry for entry in service.af.backend.get([*{_document_id(hit): None for hit in hits}])}
    return reply(
        {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": [_result_json(hit, found[_document_id(hit)]) for hit in hits if _document_id(hit) in found],
            "has_more": False,
            "next_page": None,
        }
    )


def add_file(
    service: Service, grant: Grant, namespace: str, id: str, attributes: Mapping[str, Any] | None
) -> MemoryEntry:
    """Read a file and store its text in the namespace of a vector store, and return its document. Without `attributes`,
    a file that is in the vector store already keeps its attributes. Raises `NotFound` if there is no such file, or its
    bytes are missing."""
    digest = digest_of(id)
    present = next(iter(store_documents(service, namespace, digest)), None)
    source = present or copies(service, grant, id)[0]
    name, place = source.metadata["name"], source.metadata if present else {}
    origin = Origin(place.get("origin", ""), place.get("root", ""))
    try:
        data = service.af.originals.get(digest)
    except NotFound:
        raise NotFound(f"the bytes of the file {id} are not stored; upload the file again") from None
    more = {"metadata": attributes, "origin": origin, "on_conflict": "replace" if present else "keep-both"}
    service.af.rag.upload(data, name=name, namespace=namespace, **more)  # type: ignore[arg-type]
    stored = store_documents(service, namespace, digest)
    if not stored:  # removed by another client in the meantime
        raise no_file(id)
    return stored[0]


def remove_file(service: Service, grant: Grant, document: MemoryEntry) -> None:
    """Remove the text of a document from its vector store. The file itself stays: if no other document belongs to this
    file, the document is kept without its text."""
    digest = document.metadata["sha256"]
    others = (each for name in reachable(service, grant) for each in documents(service, name, digest))
    if any(other.id != document.id for other in others):
        service.af.backend.remove([document.id])
        service.af.originals.sweep()
        return
    try:
        KeptFiles(service.af.backend, service.af.originals).forget_text(document)
    except NotFound:  # its file was never stored, because it has no usable text
        service.af.backend.remove([document.id])


def _find(service: Service, grant: Grant, vector_store_id: str, id: str) -> MemoryEntry:
    namespace = find_store(service, grant, vector_store_id)
    if found := store_documents(service, namespace, digest_of(id)):
        return found[0]
    raise no_file(id)


def _status(document: MemoryEntry) -> str:
    return "completed" if document.metadata["status"] in FINDABLE else "failed"


def _file_json(settings: Settings, document: MemoryEntry) -> dict[str, Any]:
    failed = _status(document) == "failed"
    limits = {"max_chunk_size_tokens": settings.chunk_tokens, "chunk_overlap_tokens": settings.chunk_overlap}
    return {
        "id": file_id(document),
        "object": "vector_store.file",
        "created_at": seconds(document),
        "vector_store_id": store_id(document.namespace),
        "status": _status(document),
        "last_error": {"code": "invalid_file", "message": document.metadata["reason"]} if failed else None,
        "usage_bytes": document.metadata["bytes"],
        "attributes": document.metadata["given"],
        "chunking_strategy": {"type": "static", "static": limits},
    }


def _document_id(hit: Hit) -> str:
    return hit.entry.source.document_id if hit.entry.source else ""


def _result_json(hit: Hit, document: MemoryEntry) -> dict[str, Any]:
    return {
        "file_id": file_id(document),
        "filename": document.metadata["name"],
        "score": hit.score,
        "attributes": document.metadata["given"],
        "content": [{"type": "text", "text": hit.entry.content}],
    }
