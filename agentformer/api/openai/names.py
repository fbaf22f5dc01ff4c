"""Ids of OpenAI's protocol: `vs_NAMESPACE` of a vector store, and `file-SHA256` of a file."""

from __future__ import annotations

import base64
import binascii
import re

from agentformer.errors import NotFound
from agentformer.types import MemoryEntry

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,100}")
_STORE = "vs_"
_ENCODED = "vs_~"  # before a namespace in URL-safe base64
_FILE = re.compile(r"file-([0-9a-f]{64})")


def store_id(namespace: str) -> str:
    """Return the id of the vector store of a namespace."""
    if _PLAIN.fullmatch(namespace):
        return f"{_STORE}{namespace}"
    return _ENCODED + base64.urlsafe_b64encode(namespace.encode()).decode().rstrip("=")


def namespace_of(vector_store_id: str) -> str:
    """Return the namespace of a vector store. Raises `NotFound` for an id that no vector store can have."""
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
    """Return the SHA-256 of a file. Raises `NotFound` for an id that no file can have."""
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
