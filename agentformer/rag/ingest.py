"""From a file's bytes to a searchable document: the whole pipeline, top to bottom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from agentformer.errors import DocumentError, EmbedderUnavailable, EncryptedDocument, StoreError
from agentformer.rag.chunks import CountTokens, cut
from agentformer.rag.documents import Document, Originals, document_of
from agentformer.readers import ReadLimits, read
from agentformer.text.languages import detect_language
from agentformer.text.tokens import estimated_spans
from agentformer.types import (
    DocumentStatus,
    DocumentText,
    Embedder,
    MemoryBackend,
    MemoryEntry,
    Scope,
    Source,
    Span,
    new_id,
)

Progress = Callable[[int, int], None]  # windows embedded, windows in all

_UNUSABLE: tuple[DocumentStatus, ...] = ("failed", "encrypted", "no_text", "garbled")
_LONGEST_TITLE = 300  # code points; a title is repeated beside every chunk
_LANGUAGE_SAMPLE = 20_000  # code points of a document that tell its language


class IngestPipeline:
    """Reads, cuts and stores documents. Every call is one transaction at its end, and none before."""

    def __init__(
        self,
        backend: MemoryBackend,
        originals: Originals,
        embedder: Embedder,
        *,
        chunk_tokens: int,
        chunk_overlap: int,
        limits: ReadLimits,
    ) -> None:
        self._backend = backend
        self._originals = originals
        self._embedder = embedder
        self._chunk_tokens = chunk_tokens
        self._chunk_overlap = chunk_overlap
        self._limits = limits

    def run(
        self,
        data: bytes,
        name: str,
        *,
        namespace: str,
        sha256: str,
        metadata: Mapping[str, Any],
        password: str | None = None,
        progress: Progress | None = None,
    ) -> Document:
        """Bring a file in. It replaces what had its name or its bytes, once it is complete; a file without
        usable text replaces nothing that has some, and comes back with a status and a reason."""
        document = Document(name, namespace, "ready", sha256=sha256, bytes=len(data), metadata=metadata)
        try:
            text = read(data, name, password=password, limits=self._limits)
        except DocumentError as error:
            status: DocumentStatus = "encrypted" if isinstance(error, EncryptedDocument) else "failed"
            return self._refuse(document, status, str(error))
        if text.status != "ready":
            return self._refuse(document, text.status, text.reason, text)

        entries = document_entries(document, text, self._spans, self._chunk_tokens, self._chunk_overlap)
        same = [_documents(namespace, name=name), _documents(namespace, sha256=sha256)]
        former = {entry.metadata["sha256"] for scope in same for entry in self._backend.list(scope)}
        try:
            self._originals.put(data)
            self._backend.store(entries, replacing=same, progress=progress)
            self._originals.put_locked(data)
        finally:  # of a former version, or of this one if it could not be stored
            for digest in former | {sha256}:
                with suppress(StoreError):  # what is left over harms nobody; why the work ended must be told
                    self._originals.discard(digest, self.in_use)
        return document_of(entries[0])

    def in_use(self, sha256: str) -> bool:
        """Does a document of any namespace have these bytes?"""
        return any(self._backend.count(_documents(space, sha256=sha256)) for space in self._backend.namespaces())

    def _refuse(
        self, document: Document, status: DocumentStatus, reason: str, text: DocumentText | None = None
    ) -> Document:
        """Record that the file has no usable text, unless a usable one of its name is there."""
        unusable = [_documents(document.namespace, name=document.name, status=status) for status in _UNUSABLE]
        entry = _document_entry(document, text, status, reason, chunks=0)
        self._backend.store([entry], replacing=unusable)
        if not self._backend.count(_documents(document.namespace, name=document.name, status="ready")):
            return document_of(entry)
        # Looked up after the store, so that a good version which came meanwhile is seen, and stays.
        self._backend.remove([entry.id])
        return dataclasses.replace(document, status=status, reason=f"{reason} (the former version of this name stays)")

    def _spans(self, text: str) -> list[Span]:
        try:
            return self._embedder.token_spans(text)
        except EmbedderUnavailable:
            return estimated_spans(text)


def document_entries(
    document: Document, text: DocumentText, count: CountTokens, chunk_tokens: int, chunk_overlap: int
) -> list[MemoryEntry]:
    """What is stored of a document: itself, its pages, and its chunks of at most `chunk_tokens`."""
    language = detect_language(_beginning(text))
    pieces = list(cut(text, document.name, count, chunk_tokens, chunk_overlap))
    whole = _document_entry(document, text, "ready", text.reason, chunks=len(pieces), language=language)
    pages = [
        MemoryEntry(
            id=new_id(),
            content=page.text if page.status == "text" else "",
            kind="page",
            namespace=document.namespace,
            metadata={"status": page.status, "reason": page.reason, "method": page.method},
            source=Source(whole.id, document.name, page.number, page.label, 0, len(page.text)),
            parent_id=whole.id,
        )
        for page in text.pages
    ]
    chunks = [
        MemoryEntry(
            id=new_id(),
            content=piece.text,
            kind="chunk",
            namespace=document.namespace,
            title=PurePath(document.name).stem,
            context=piece.context,
            metadata={"language": language, **document.metadata},
            source=Source(whole.id, document.name, piece.page.number, piece.page.label, *piece.span),
            parent_id=whole.id,
        )
        for piece in pieces
    ]
    return [whole, *pages, *chunks]


def _beginning(text: DocumentText) -> str:
    """As much of the document as tells its language."""
    parts: list[str] = []
    left = _LANGUAGE_SAMPLE
    for page in text.pages:
        if page.status == "text" and left > 0:
            parts.append(page.text[:left])
            left -= len(parts[-1]) + 1
    return " ".join(parts)


def _documents(namespace: str, **metadata: str) -> Scope:
    return Scope(namespace, kinds=("document",), metadata=metadata)


def _document_entry(
    document: Document,
    text: DocumentText | None,
    status: DocumentStatus,
    reason: str,
    *,
    chunks: int,
    language: str = "",
) -> MemoryEntry:
    return MemoryEntry(
        id=new_id(),
        content=document.name,
        kind="document",
        namespace=document.namespace,
        title=text.title[:_LONGEST_TITLE] if text else "",
        metadata={
            "name": document.name,
            "sha256": document.sha256,
            "bytes": document.bytes,
            "media_type": text.media_type if text else "",
            "pages": len(text.pages) if text else 0,
            "chunks": chunks,
            "status": status,
            "reason": reason,
            "language": language,
            "given": dict(document.metadata),
        },
    )
