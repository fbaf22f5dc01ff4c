"""The ingestion of documents: read a file, cut the text into chunks, and store the chunks with their embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from agentformer.embedders import estimated_spans
from agentformer.errors import DocumentError, EmbedderUnavailable, EncryptedDocument, StoreError
from agentformer.rag.chunks import CountTokens, cut
from agentformer.rag.documents import Document, Originals, document_of
from agentformer.readers import ReadLimits, read
from agentformer.text.languages import detect_language
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

Progress = Callable[[int, int], None]  # number of embedded windows, number of all windows

_UNUSABLE: tuple[DocumentStatus, ...] = ("failed", "encrypted", "no_text", "garbled")
_MAX_TITLE = 300  # code points; the title is repeated with every chunk
_LANGUAGE_SAMPLE = 20_000  # code points of a document from which its language is detected


@dataclasses.dataclass(frozen=True)
class IngestPipeline:
    """Reads files, cuts their text into chunks, and stores the chunks."""

    backend: MemoryBackend
    originals: Originals
    embedder: Embedder
    _: dataclasses.KW_ONLY
    chunk_tokens: int
    chunk_overlap: int
    limits: ReadLimits

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
        """Ingest a file in one transaction, and return the stored document. The new document replaces the documents of
        the namespace that have the same name or the same bytes. If the file has no usable text, the returned document
        has a status and a reason, and an older usable document with the same name is kept. Raises `StoreError` if the
        document cannot be stored."""
        document = Document(name, namespace, "ready", sha256=sha256, bytes=len(data), metadata=metadata)
        try:
            text = read(data, name, password=password, limits=self.limits)
        except DocumentError as error:
            status: DocumentStatus = "encrypted" if isinstance(error, EncryptedDocument) else "failed"
            return self._store_unusable(document, status, str(error))
        if text.status != "ready":
            return self._store_unusable(document, text.status, text.reason, text)

        entries = document_entries(document, text, self._token_spans, self.chunk_tokens, self.chunk_overlap)
        former = [_documents(namespace, name=name), _documents(namespace, sha256=sha256)]
        digests = {entry.metadata["sha256"] for scope in former for entry in self.backend.list(scope)}
        try:
            self.originals.put(data)
            self.backend.store(entries, replacing=former, progress=progress)
            self.originals.put_locked(data)
        finally:  # deletes the originals of replaced documents, or the new original if the document was not stored
            for digest in digests | {sha256}:
                with suppress(StoreError):  # an unused file is harmless, and this error must not hide the first error
                    self.originals.discard(digest, self.in_use)
        return document_of(entries[0])

    def in_use(self, sha256: str) -> bool:
        """Return whether a document of any namespace has the bytes with this SHA-256."""
        return any(self.backend.count(_documents(name, sha256=sha256)) for name in self.backend.namespaces())

    def _store_unusable(
        self, document: Document, status: DocumentStatus, reason: str, text: DocumentText | None = None
    ) -> Document:
        """Store an entry for a file without usable text, and return the document. If a usable document with the same
        name exists, the entry is not kept."""
        former = [_documents(document.namespace, name=document.name, status=status) for status in _UNUSABLE]
        entry = _document_entry(document, text, status, reason, chunks=0)
        self.backend.store([entry], replacing=former)
        if not self.backend.count(_documents(document.namespace, name=document.name, status="ready")):
            return document_of(entry)
        # Counted after the store, so that a usable version of a concurrent upload is found and kept.
        self.backend.remove([entry.id])
        reason = f"{reason} (the document stored before with this name is kept)"
        return dataclasses.replace(document, status=status, reason=reason)

    def _token_spans(self, text: str) -> list[Span]:
        try:
            return self.embedder.token_spans(text)
        except EmbedderUnavailable:
            return estimated_spans(text)


def document_entries(
    document: Document, text: DocumentText, count: CountTokens, chunk_tokens: int, chunk_overlap: int
) -> list[MemoryEntry]:
    """Return the entries to store for a document: one entry for the document, one for each page, and one for each
    chunk. A chunk has at most `chunk_tokens` tokens. `count` returns the tokens of a text."""
    language = detect_language(_beginning(text))
    chunks = list(cut(text, document.name, count, chunk_tokens, chunk_overlap))
    root = _document_entry(document, text, "ready", text.reason, chunks=len(chunks), language=language)
    page_entries = [
        MemoryEntry(
            id=new_id(),
            content=page.text if page.status == "text" else "",
            kind="page",
            namespace=document.namespace,
            metadata={"status": page.status, "reason": page.reason, "method": page.method},
            source=Source(root.id, document.name, page.number, page.label, 0, len(page.text)),
            parent_id=root.id,
        )
        for page in text.pages
    ]
    chunk_entries = [
        MemoryEntry(
            id=new_id(),
            content=chunk.text,
            kind="chunk",
            namespace=document.namespace,
            title=PurePath(document.name).stem,
            context=chunk.context,
            metadata={"language": language, **document.metadata},
            source=Source(root.id, document.name, chunk.page.number, chunk.page.label, *chunk.span),
            parent_id=root.id,
        )
        for chunk in chunks
    ]
    return [root, *page_entries, *chunk_entries]


def _beginning(text: DocumentText) -> str:
    """Return the first `_LANGUAGE_SAMPLE` characters of the document, from which the language is detected."""
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
        title=text.title[:_MAX_TITLE] if text else "",
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
