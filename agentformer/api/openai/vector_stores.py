"""Endpoints for vector stores. A vector store is a namespace whose documents can be searched."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from flask import Response

from agentformer.access.permissions import Grant
from agentformer.api.openai import models
from agentformer.api.openai.files import upload_slot
from agentformer.api.openai.lookup import (
    NAMESPACE_HEADER,
    RECORD,
    birth_of,
    copies,
    find_store,
    home,
    no_store,
    page,
    page_json,
    reachable,
    record_of,
    seconds,
    store_documents,
    store_id,
)
from agentformer.api.openai.store_files import add_file, remove_file
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.errors import Conflict, Forbidden
from agentformer.memory.backends import all_entries
from agentformer.rag.uploads import unchanged
from agentformer.records import fields
from agentformer.types import FINDABLE, UNSEARCHED_KIND, MemoryEntry, Scope, new_id

_STORES = "/v1/vector_stores"
_STORE = f"{_STORES}/{{vector_store_id}}"
_NUMBER = 12  # characters of a number after a name

router = Router("openai vector stores")


@router.route(
    "POST",
    _STORES,
    "rag_upload unless stored",
    {200: models.VectorStore},
    headers=NAMESPACE_HEADER,
    around=upload_slot,
    errors=(404, 409, 429, 507),
)
def create(service: Service, grant: Grant, body: models.NewStore) -> Response:
    """Create a vector store, and add files to it.

    The name of the vector store is also the name of its namespace. If there is a vector store of this name already, a
    number is added to the name of the namespace. Without a name, the namespace gets a new name. A key that is limited
    to namespaces can create only the vector stores of these namespaces."""
    home(grant)  # checks the header
    for id in body.file_ids or ():
        copies(service, grant, id)  # before anything is stored
    values = {"name": body.name or "", "metadata": body.metadata or {}, "description": body.description or ""}
    namespace = _new_store(service, grant, values)
    for id in body.file_ids or ():
        add_file(service, grant, namespace, id, None)
    return reply(_store_json(service, namespace))


@router.route("GET", _STORES, "document", {200: models.VectorStores})
def list_stores(service: Service, grant: Grant, query: models.PageQuery) -> Response:
    """List the vector stores that the key may use.

    They are the namespaces with documents, and those that were created as vector stores.
    """
    births = ((namespace, birth_of(service, namespace)) for namespace in reachable(service, grant))
    stores = sorted((birth.id, namespace) for namespace, birth in births if birth is not None)
    items, more = page([namespace for _, namespace in stores], query, store_id)
    return reply(page_json([_store_json(service, namespace) for namespace in items], more=more))


@router.route("GET", _STORE, "document", {200: models.VectorStore})
def retrieve(service: Service, grant: Grant, vector_store_id: str) -> Response:
    """Return a vector store."""
    return reply(_store_json(service, find_store(service, grant, vector_store_id)))


@router.route("POST", _STORE, "rag_upload unless stored", {200: models.VectorStore}, errors=(409, 507))
def update(service: Service, grant: Grant, body: models.StoreChanges, vector_store_id: str) -> Response:
    """Change the name or the metadata of a vector store. Its id and its namespace stay the same."""
    namespace = find_store(service, grant, vector_store_id)
    record = record_of(service, namespace)
    former = {"name": namespace, "metadata": {}, "description": ""} if record is None else record.metadata
    given = {"name": body.name, "metadata": body.metadata}
    values = {**former, **{name: value for name, value in given.items() if value is not None}}
    if record is not None:
        service.af.backend.update(record.id, {"metadata": values}, record.version)
    else:
        _store_record(service, namespace, values)
    return reply(_store_json(service, namespace))


@router.route("DELETE", _STORE, "memory_delete", {200: models.Deleted}, errors=(409,))
def delete(service: Service, grant: Grant, vector_store_id: str) -> Response:
    """Delete a vector store. The files stay, and so do the memories of the namespace."""
    namespace = find_store(service, grant, vector_store_id)
    for document in store_documents(service, namespace):
        remove_file(service, grant, document)
    if (record := record_of(service, namespace)) is not None:
        service.af.backend.remove([record.id])
    return reply({"id": vector_store_id, "object": "vector_store.deleted", "deleted": True})


def _new_store(service: Service, grant: Grant, values: dict[str, Any]) -> str:
    """Store the record of a new vector store, and return its namespace. `values` has its name and metadata. The
    namespace has the name of the vector store, or a random name if this name is empty. If a vector store has this
    namespace already, a number is added. Raises `Forbidden` if the key may not use the namespace. Raises `Conflict` if
    a number must be added, and the key may not use the namespace with this number."""
    name = values["name"].strip()
    if not name and grant.namespaces:
        raise Forbidden(f"this key may use only the namespaces {', '.join(grant.namespaces)}; give one of them as name")
    first = grant.namespace(fields.name("name", name)) if name else f"store-{secrets.token_hex(6)}"
    for number in itertools.count(1):
        namespace = first if number == 1 else f"{first[: fields.MAX_NAME - _NUMBER]} ({number})"
        if not grant.reaches(namespace):
            raise Conflict(
                f"the vector store {store_id(first)} exists already, and this key may not use another namespace"
            )
        try:
            if birth_of(service, namespace) is None:
                _store_record(service, namespace, {**values, "name": name})
                return namespace
        except Conflict:  # another client has created it in the meantime
            continue
    raise AssertionError("the loop ends only with a free name")


def _store_record(service: Service, namespace: str, values: dict[str, Any]) -> None:
    """Store the record (the name and the metadata) of a vector store that has none. Raises `Conflict` if another client
    has stored one in the meantime."""
    scope = Scope(namespace, source_type=RECORD)
    others = [entry.id for entry in all_entries(service.af.backend, scope)]
    if record_of(service, namespace) is not None:
        raise Conflict(f"another client has created the vector store {store_id(namespace)} in the meantime; try again")
    service.af.backend.store([_record(namespace, values)], check=unchanged([(scope, others)]))


def _record(namespace: str, values: dict[str, Any]) -> MemoryEntry:
    return MemoryEntry(
        id=new_id(),
        content=values["name"] or namespace,
        kind=UNSEARCHED_KIND,
        namespace=namespace,
        metadata=values,
        source_type=RECORD,
        source_id=RECORD,
    )


def _store_json(service: Service, namespace: str) -> dict[str, Any]:
    birth, record = birth_of(service, namespace), record_of(service, namespace)
    if birth is None:  # deleted by another client in the meantime
        raise no_store(store_id(namespace))
    found = store_documents(service, namespace)
    completed = sum(document.metadata["status"] in FINDABLE for document in found)
    return {
        "id": store_id(namespace),
        "object": "vector_store",
        "created_at": seconds(birth),
        "name": record.metadata["name"] if record else namespace,
        "usage_bytes": sum(document.metadata["bytes"] for document in found),
        "file_counts": {
            "in_progress": 0,
            "completed": completed,
            "failed": len(found) - completed,
            "cancelled": 0,
            "total": len(found),
        },
        "status": "completed",
        "expires_after": None,
        "expires_at": None,
        "last_active_at": seconds(found[-1] if found else birth),
        "metadata": record.metadata["metadata"] if record else {},
    }
