"""Endpoints for files. A file is a document; no search finds its text before the file is added to a vector store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from flask import Response

from agentformer.access.permissions import Grant
from agentformer.api.endpoints.documents import file_response
from agentformer.api.endpoints.uploads import file_name, files_of_request, read_multipart
from agentformer.api.openai import models
from agentformer.api.openai.lookup import (
    NAMESPACE_HEADER,
    copies,
    documents,
    file_id,
    no_file,
    page,
    page_json,
    request_namespace,
    seconds,
)
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.errors import InvalidInput, NotFound
from agentformer.rag.uploads import Origin, read_upload
from agentformer.types import MemoryEntry

_FILE = "/v1/files/{file_id}"

router = Router("openai files")


@contextmanager
def upload_slot(service: Service) -> Iterator[None]:
    """Limit the number of concurrent uploads. The current request counts as an upload until the end of the `with`
    block. Raises `Busy` if too many uploads are in progress."""
    with service.uploads.reserve(), service.threads.reserve():
        yield


@contextmanager
def _form_slot(service: Service) -> Iterator[None]:
    with upload_slot(service):
        read_multipart(service.af.settings)
        yield


@router.route(
    "POST",
    "/v1/files",
    "rag_upload unless stored",
    {200: models.File},
    headers=NAMESPACE_HEADER,
    around=_form_slot,
    errors=(409, 429, 507),
)
def upload(service: Service, grant: Grant, form: models.FileForm) -> Response:
    """Upload a file.

    The file is stored in the namespace that the header `X-AgentFormer-Namespace` names, or else in the namespace of the
    key. Searches find its text after it was added to a vector store. The id of a file is computed from its bytes, so
    that equal files have equal ids. If another file of the same name is stored, the new file gets a name with a number.
    """
    namespace, settings = request_namespace(grant), service.af.settings
    files = files_of_request(settings)
    if len(files) != 1:
        raise InvalidInput("file", f"is given {len(files)} times; send one file in each request")
    name = file_name(files[0].filename)
    if not name:
        raise InvalidInput("file", "has no name; give the file a name, such as report.pdf")
    data, document = read_upload(cast(BinaryIO, files[0].stream), name, Origin(), settings.max_file_bytes)
    service.af.rag.keep(data, dataclasses.replace(document, namespace=namespace))
    stored = next(documents(service, namespace, document.sha256), None)
    if stored is None:  # another client has deleted it in the meantime
        raise no_file(f"file-{document.sha256}")
    return reply(_file_json(stored))


@router.route("GET", "/v1/files", "document", {200: models.Files}, headers=NAMESPACE_HEADER)
def list_files(service: Service, grant: Grant, query: models.FilesQuery) -> Response:
    """List the files in the namespace of the request."""
    namespace = request_namespace(grant)
    wanted = query.purpose in (None, "assistants", "user_data")
    found = {file_id(entry): entry for entry in documents(service, namespace)} if wanted else {}
    items, more = page([*found.values()], query, file_id)
    return reply(page_json([_file_json(entry) for entry in items], more=more))


@router.route("GET", _FILE, "document", {200: models.File}, headers=NAMESPACE_HEADER)
def retrieve(service: Service, grant: Grant, file_id: str) -> Response:
    """Return the name and the size of a file."""
    return reply(_file_json(copies(service, grant, file_id)[0]))


@router.route(
    "GET", f"{_FILE}/content", "document text", {200: ("application/octet-stream",)}, headers=NAMESPACE_HEADER
)
def content(service: Service, grant: Grant, file_id: str) -> Response:
    """Return the bytes of a file."""
    document = copies(service, grant, file_id)[0]
    try:
        data = service.af.originals.get(document.metadata["sha256"])
    except NotFound:
        raise NotFound("the bytes of this file are not stored; upload the file again") from None
    return file_response(data, document.metadata["name"])


@router.route("DELETE", _FILE, "memory_delete", {200: models.Deleted}, headers=NAMESPACE_HEADER)
def delete(service: Service, grant: Grant, file_id: str) -> Response:
    """Delete a file, and remove it from all vector stores that the key may use."""
    found = copies(service, grant, file_id)
    if not service.af.backend.remove([document.id for document in found]):
        raise no_file(file_id)  # deleted by another client in the meantime
    service.af.originals.sweep()
    return reply({"id": file_id, "object": "file.deleted", "deleted": True})


def _file_json(document: MemoryEntry) -> dict[str, Any]:
    return {
        "id": file_id(document),
        "object": "file",
        "bytes": document.metadata["bytes"],
        "created_at": seconds(document),
        "filename": document.metadata["name"],
        "purpose": "assistants",
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }
