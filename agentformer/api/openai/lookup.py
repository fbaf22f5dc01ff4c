"""Endpoints below `/v1` with the protocol of OpenAI: files, vector stores, embeddings, models and chat completions. The
official clients of OpenAI use these endpoints.

A vector store is a namespace, and a file is a document. The id of a file is `file-SHA256`, and the id of a vector store
is `vs_NAMESPACE` (see `store_id`). The functions here find files, vector stores and their documents in the namespaces
of a key, and return one page of a list.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flask import request
from werkzeug.datastructures import Headers

from agentformer.access.permissions import Grant
from agentformer.api.operations import Service
from agentformer.errors import InvalidInput, NotFound
from agentformer.memory.backends import all_entries
from agentformer.rag.documents import STORED
from agentformer.records import fields
from agentformer.types import UNSEARCHED_KIND, MemoryEntry, Scope

T = TypeVar("T")

NAMESPACE = "X-AgentFormer-Namespace"
NAMESPACE_HEADER = {
    NAMESPACE: {
        "description": "The namespace of the request. By default, it is the namespace of the key, or `default`.",
        "maxLength": fields.MAX_NAME,
        "pattern": "^[^,]*$",  # see `header`
    }
}
RECORD = fields.VECTOR_STORE
_READ = {"type": "not", "filters": [{"type": "eq", "key": "status", "value": STORED}]}
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,100}")
_STORE = "vs_"
_ENCODED = "vs_~"  # before a namespace in URL-safe base64
_FILE = re.compile(r"file-([0-9a-f]{64})")


def header(headers: Headers, name: str) -> str:
    """Return the value of a header, which may be text in UTF-8, or "" if the header is absent. Raises `InvalidInput`
    for a comma, because servers and proxies join the values of a repeated header with commas."""
    value = headers.get(name, "").strip()
    if "," in value:
        raise InvalidInput(name, "contains a comma, or is sent twice; send it once, with a value without a comma")
    try:
        return value.encode("latin-1").decode()
    except ValueError:
        return value


def request_namespace(grant: Grant) -> str:
    """Return the namespace of the current request. The header `X-AgentFormer-Namespace` names it; without this header,
    it is the namespace of the key. Raises `Forbidden` if the key may not use the namespace, and `InvalidInput` if the
    header is invalid, or if it is absent and the key has several namespaces."""
    return grant.namespace(header(request.headers, NAMESPACE) or None)


def reachable(service: Service, grant: Grant) -> list[str]:
    """Return the namespaces that contain entries and that the key may use."""
    return [name for name in service.af.backend.namespaces() if grant.reaches(name)]


def documents(service: Service, namespace: str, digest: str | None = None, **more: Any) -> Iterator[MemoryEntry]:
    """Yield the documents of a namespace, oldest first. With `digest`, yield only documents whose file has this
    SHA-256. `more` contains further conditions, which are fields of a `Scope`."""
    metadata = {} if digest is None else {"sha256": digest}
    return all_entries(service.af.backend, Scope(namespace, kinds=("document",), metadata=metadata, **more))


def store_documents(service: Service, namespace: str, digest: str | None = None) -> list[MemoryEntry]:
    """Return the documents of a vector store, including those whose file could not be read. Files that were only
    uploaded are left out. With `digest`, return only documents whose file has this SHA-256."""
    return [*documents(service, namespace, digest, where=_READ)]


def copies(service: Service, grant: Grant, id: str) -> list[MemoryEntry]:
    """Return the documents of a file in all namespaces of the key. The documents in the namespace of the request come
    first. Raises `NotFound` if there is no document."""
    digest, first = digest_of(id), request_namespace(grant)
    names = [first, *(name for name in reachable(service, grant) if name != first)]
    found = [document for name in names for document in documents(service, name, digest)]
    if not found:
        raise no_file(id)
    return found


def record_of(service: Service, namespace: str) -> MemoryEntry | None:
    """Return the record of a vector store, or None if there is no record. The record is the entry with the name and the
    metadata of the vector store. An entry that a client has stored with the same source type but in another form is
    skipped."""
    entries = all_entries(service.af.backend, Scope(namespace, kinds=(UNSEARCHED_KIND,), source_type=RECORD))
    for entry in entries:
        name, metadata = entry.metadata.get("name"), entry.metadata.get("metadata")
        if entry.source_id == RECORD and isinstance(name, str) and isinstance(metadata, Mapping):
            return entry
    return None


def creation_entry(service: Service, namespace: str) -> MemoryEntry | None:
    """Return the entry whose time is the creation time of a vector store: its record, or else its first document.
    Return None if the namespace is not a vector store."""
    record = record_of(service, namespace)
    if record is not None:
        return record
    first = service.af.backend.list(Scope(namespace, kinds=("document",), where=_READ), limit=1)
    return first[0] if first else None


def find_store(service: Service, grant: Grant, vector_store_id: str) -> str:
    """Return the namespace of a vector store. Raises `NotFound` if there is no such vector store, or if the key may not
    use it; the two cases have the same message."""
    namespace = namespace_of(vector_store_id)
    if not grant.reaches(namespace) or creation_entry(service, namespace) is None:
        raise no_store(vector_store_id)
    return namespace


def page(items: Sequence[T], query: Any, id_of: Callable[[T], str]) -> tuple[list[T], bool]:
    """Return one page of a list, and whether there are more items in the direction of the paging. `items` are sorted by
    time, oldest first. `query` has the fields of `PageQuery`: the page begins after the item with the id `after`, or
    ends before the item with the id `before`. If the list has no item with this id, the page is empty. `id_of` returns
    the id of an item."""
    ordered = [*items] if query.order == "asc" else [*reversed(items)]
    before = getattr(query, "before", None)
    ids = [id_of(item) for item in ordered] if before or query.after else []
    if before is not None:
        end = ids.index(before) if before in ids else 0
        return ordered[max(0, end - query.limit) : end], end > query.limit
    start = 0 if query.after is None else ids.index(query.after) + 1 if query.after in ids else len(ordered)
    return ordered[start : start + query.limit], start + query.limit < len(ordered)


def page_json(items: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return a page of a list in OpenAI's format."""
    ends = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": [*items], "first_id": ends[0], "last_id": ends[1], "has_more": more}


def store_id(namespace: str) -> str:
    """Return the id of the vector store of a namespace: `vs_` and the name of the namespace. A name that is longer than
    100 characters, or has other characters than ASCII letters, digits, ".", "_" and "-", is encoded in base64 after
    `vs_~`."""
    if _PLAIN.fullmatch(namespace):
        return f"{_STORE}{namespace}"
    return _ENCODED + base64.urlsafe_b64encode(namespace.encode()).decode().rstrip("=")


def namespace_of(vector_store_id: str) -> str:
    """Return the namespace of a vector store. Raises `NotFound` for a malformed id, which `store_id` never returns."""
    namespace = vector_store_id.removeprefix(_STORE)
    if vector_store_id.startswith(_ENCODED):
        encoded = vector_store_id.removeprefix(_ENCODED)
        try:
            namespace = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            namespace = ""
    if not namespace or store_id(namespace) != vector_store_id:
        raise no_store(vector_store_id)
    return namespace


def file_id(document: MemoryEntry) -> str:
    """Return the id of the file of a document. Equal files have equal ids."""
    return f"file-{document.metadata['sha256']}"


def digest_of(id: str) -> str:
    """Return the SHA-256 of a file. Raises `NotFound` if the id does not have the form `file-SHA256`."""
    if match := _FILE.fullmatch(id):
        return match[1]
    raise no_file(id)


def no_store(id: str) -> NotFound:
    """Return the error for a vector store that does not exist, or that the key may not use."""
    return NotFound(f"there is no vector store {id:.80}; GET /v1/vector_stores lists them")


def no_file(id: str) -> NotFound:
    """Return the error for a file that does not exist, or that the key may not use."""
    return NotFound(f"there is no file {id:.80}; GET /v1/files lists them")


def seconds(entry: MemoryEntry) -> int:
    """Return the time at which an entry was stored, in seconds since 1970."""
    return int(entry.created_at.timestamp()) if entry.created_at else 0
