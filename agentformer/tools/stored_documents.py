"""`StoredDocuments`: lists, reads and removes the documents of a memory."""

from __future__ import annotations

import dataclasses

from agentformer.errors import NotFound
from agentformer.memory.backends import all_entries
from agentformer.rag.documents import METADATA_REPLACED, Document, document_of, page_of
from agentformer.rag.originals import Originals
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, MemoryBackend, MemoryEntry, Page, Scope

PENDING = (
    "the embedder was unavailable; searches find the document only by its words until you run `agentformer reindex`"
)


class StoredDocuments:
    """The documents that are stored in a backend, with their original files. The base class of `RAGTool`."""

    _backend: MemoryBackend
    _originals: Originals

    def documents(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Document]:
        """Return every document of the namespace, the oldest first. A document with the status `pending` has no vectors
        yet, but searches find the document by its words."""
        scope = Scope(fields.name("namespace", namespace), kinds=("document",))
        return [self._with_state(document_of(entry)) for entry in all_entries(self._backend, scope)]

    def page_of_documents(
        self, *, namespace: str = DEFAULT_NAMESPACE, after: str = "", limit: int = 100
    ) -> list[Document]:
        """Return at most `limit` documents of the namespace, the oldest first. The list begins after the document with
        the id `after`."""
        scope = Scope(fields.name("namespace", namespace), kinds=("document",))
        return [self._with_state(document_of(entry)) for entry in self._page(scope, after, limit)]

    def document(self, document_id: str, *, namespace: str | None = None) -> Document:
        """Return the document with this id. Raises `NotFound` if the namespace has no such document. If `namespace` is
        None, all namespaces are searched."""
        return self._with_state(document_of(self._document(document_id, namespace)))

    def original(self, document_id: str, *, namespace: str | None = None) -> bytes:
        """Return the uploaded bytes of a document. Raises `NotFound` if the document or its original file is
        missing."""
        return self._originals.get(self._document(document_id, namespace).metadata["sha256"])

    def chunks(
        self, document_id: str, *, namespace: str | None = None, after: str = "", limit: int = 100
    ) -> list[MemoryEntry]:
        """Return at most `limit` chunks of a document in the order of the text. The list begins after the chunk with
        the id `after`. Raises `NotFound` if there is no such document."""
        entry = self._document(document_id, namespace)
        return self._page(Scope(entry.namespace, kinds=("chunk",), document_id=document_id), after, limit)

    def pages(self, document_id: str, *, namespace: str | None = None) -> list[Page]:
        """Return the pages of a document with their stored text. The offsets in citations are positions in this text.
        Raises `NotFound` if there is no such document."""
        entry = self._document(document_id, namespace)
        scope = Scope(entry.namespace, kinds=("page",), document_id=document_id)
        return [page_of(page) for page in all_entries(self._backend, scope)]

    def remove(self, document_id: str, *, namespace: str | None = None, expected_version: int | None = None) -> None:
        """Delete a document, everything that was made from the document, and its original file. Raises `NotFound` if
        there is no such document, and `Conflict` if `expected_version` is given and its entry has another version."""
        self._document(document_id, namespace)
        self._backend.remove([document_id], expected_version)
        self._originals.sweep()

    def _document(self, document_id: str, namespace: str | None) -> MemoryEntry:
        entries = self._backend.get([document_id])
        if not entries or entries[0].kind != "document" or namespace not in (None, entries[0].namespace):
            place = f" in namespace {namespace}" if namespace else ""
            raise NotFound(f"there is no document {document_id}{place}; `agentformer list` shows the documents")
        return entries[0]

    def _with_state(self, document: Document) -> Document:
        """Return the document. If a part of the document still waits for the embedder, the status in the result is
        `pending`."""
        if document.status != "ready" or not self._backend.pending(Scope(document.namespace, document_id=document.id)):
            return document
        replaced = f"{METADATA_REPLACED}; " if document.reason.startswith(METADATA_REPLACED) else ""
        return dataclasses.replace(document, status="pending", reason=f"{replaced}{PENDING}")

    def _page(self, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
        after = fields.text("after", after, fields.MAX_NAME)
        return [*self._backend.list(scope, after=after, limit=fields.limit("limit", limit))]
