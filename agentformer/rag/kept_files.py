"""Files that are stored but not read, so that searches do not find their text: they were not added to a vector store
yet, or were removed from one."""

from __future__ import annotations

import dataclasses

from agentformer.errors import Conflict
from agentformer.rag.documents import Document, document_of
from agentformer.rag.ingest import document_entry
from agentformer.rag.originals import Originals
from agentformer.rag.uploads import Placement, place, unchanged
from agentformer.types import DocumentStatus, DocumentText, MemoryBackend, MemoryEntry, Scope

STORED: DocumentStatus = "stored"  # the status of a document whose file is stored and not read
_REASON = "the file is stored and not read; upload it, or add it to a vector store, so that a search can find its text"
_PAGE = 100  # documents read at a time
_ATTEMPTS = 20  # each failed attempt means that another process has changed the same document


class KeptFiles:
    """Stores files as documents with the status `stored`. They have no text, so no search finds them. A later upload of
    the same file to the same namespace reads the file. Thread-safe if the backend is thread-safe."""

    def __init__(self, backend: MemoryBackend, originals: Originals) -> None:
        self._backend = backend
        self._originals = originals

    def keep(self, data: bytes, document: Document) -> Document:
        """Store a file, and return its document. If a document with the same name has the same bytes, return this
        document. If it has other bytes, add a number to the name of the file. Raises `StoreError` if the file cannot be
        stored, and `Conflict` if other uploads change the documents of this name again and again."""
        for _ in range(_ATTEMPTS):
            placement = place(self._backend, document, "keep-both")
            former = [entry for entry in placement.former if entry.metadata["status"] == STORED]
            if same := [*([placement.same] if placement.same else []), *former]:
                self._originals.restore(data)
                return dataclasses.replace(document_of(same[0]), unchanged=True)
            try:
                return self._store(data, placement)
            except Conflict:
                continue
        raise Conflict(
            f"other uploads of {document.name[:200]!r} are in progress; upload the file again when they have ended"
        )

    def forget_text(self, entry: MemoryEntry) -> Document:
        """Remove the text of a document and keep its file. Return the document, which has a new id. Raises `NotFound`
        if the file is missing, and `Conflict` if another caller changes the document at the same time."""
        document = document_of(entry)
        scope = Scope(entry.namespace, kinds=("document",), metadata={"sha256": document.sha256})
        expected: list[str] = []
        while more := self._backend.list(scope, after=expected[-1] if expected else "", limit=_PAGE):
            expected += [other.id for other in more]
        if entry.id not in expected:
            raise Conflict(f"the document {document.name[:200]!r} was changed in the meantime; try again")
        placement = Placement(document, (entry,), None, unchanged([(scope, expected)]))
        return self._store(self._originals.get(document.sha256), placement)

    def _store(self, data: bytes, placement: Placement) -> Document:
        text = DocumentText("", (), status=STORED, reason=_REASON)
        entry = document_entry(placement.document, text, STORED, _REASON, chunks=0)
        with self._originals.storing([entry], [data]):
            self._backend.store([entry], replacing=placement.replacing, check=placement.check)
        return document_of(entry)
