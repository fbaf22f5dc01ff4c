"""The ingestion of documents: read a file, cut its text into chunks, and make the entries to store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

from agentformer.embedders.guarded import token_spans
from agentformer.errors import DocumentError, EmbedderError, EncryptedDocument
from agentformer.index.embedding.windows import WindowEmbedder
from agentformer.rag.chunks import PageChunk, cut
from agentformer.rag.documents import Document, document_entry
from agentformer.readers import ReadLimits, read
from agentformer.readers.formats import looks_like_text
from agentformer.text.code import CODE_LANGUAGE
from agentformer.text.languages.detection import detect_language
from agentformer.types import DocumentStatus, DocumentText, Embedder, MemoryEntry, Source, Stopped, new_id

Progress = Callable[[int, int], None]  # number of embedded windows, number of all windows
_LANGUAGE_SAMPLE = 20_000  # code points of a document from which its language is detected


@runtime_checkable
class TextProgress(Protocol):
    """A progress callback that also receives the numbers of pages and chunks of a file. These are passed to its method
    `read`, once, after the text of the file was cut into chunks."""

    def __call__(self, done: int, windows: int, /) -> None: ...

    def read(self, pages: int, chunks: int) -> None: ...


@dataclasses.dataclass(frozen=True)
class IngestPipeline:
    """Reads files, and makes the entries of their pages and chunks."""

    embedder: Embedder
    _: dataclasses.KW_ONLY
    chunk_tokens: int
    chunk_overlap: int
    limits: ReadLimits

    def read(
        self, data: bytes, name: str, password: str | None = None, *, stopped: Stopped | None = None
    ) -> DocumentText:
        """Return the text of a file. If the file cannot be read, the returned text has no pages, and its status and
        reason say why. The reader is ended when `stopped` returns True."""
        try:
            return read(data, name, password=password, limits=self.limits, stopped=stopped)
        except DocumentError as error:
            status: DocumentStatus = "encrypted" if isinstance(error, EncryptedDocument) else "failed"
            return DocumentText("", (), status=status, reason=str(error), reason_code=error.code)

    def is_text(self, head: bytes) -> bool:
        """Return whether a file that begins with these bytes is text."""
        return looks_like_text(head)

    def chunks(self, text: DocumentText, name: str) -> list[PageChunk]:
        """Cut the text of the document `name` into chunks, and return them."""
        return [*cut(text, name, token_spans(self.embedder), self.chunk_tokens, self.chunk_overlap)]

    def entries(
        self,
        document: Document,
        text: DocumentText,
        progress: Progress | TextProgress | None = None,
        chunks: list[PageChunk] | None = None,
    ) -> list[MemoryEntry]:
        """Return the entries to store for a document: one entry for the document, one for each page, and one for each
        chunk. A document without usable text is a single entry. `chunks` are the chunks, if they are cut already."""
        if text.status != "ready":
            return [document_entry(document, text)]
        prose = _beginning(text)  # no language is guessed from code
        language = detect_language(prose) if prose else CODE_LANGUAGE
        chunks = self.chunks(text, document.name) if chunks is None else chunks
        if isinstance(progress, TextProgress):
            progress.read(len(text.pages), len(chunks))
        root = document_entry(document, text, chunks=len(chunks), language=language)
        page_entries = [
            MemoryEntry(
                id=new_id(),
                content=page.text if page.status == "text" else "",
                kind="page",
                namespace=document.namespace,
                user_id=document.user_id,
                metadata={name: getattr(page, name) for name in ("status", "reason", "reason_code", "method")},
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
                user_id=document.user_id,
                title=PurePath(document.name).stem,
                context=chunk.context,
                metadata={
                    "language": CODE_LANGUAGE if chunk.page.code else language,
                    **document.metadata,
                    **_position_metadata(chunk),
                },
                source=Source(root.id, document.name, chunk.page.number, chunk.label, *chunk.span),
                parent_id=root.id,
            )
            for chunk in chunks
        ]
        return [root, *page_entries, *chunk_entries]

    def rehearse(self, data: bytes, document: Document, password: str | None, *, embed: bool) -> Document:
        """Do the work of an upload again without storing anything: read the file, cut its text and, if `embed` is true,
        embed the chunks. The upload of a stored file then takes as long as that of a new file, and does not reveal that
        the file is stored. Return the document with the status and the reason that a new upload would have."""
        text = self.read(data, document.name, password)
        status = text.status
        if status == "ready":
            chunks = [entry for entry in self.entries(document, text) if entry.kind == "chunk"]
            try:
                if embed:
                    WindowEmbedder(self.embedder, lambda hashes: set(), lambda rows: None).embed(chunks)
            except EmbedderError:
                return dataclasses.replace(document, status="pending")
        return dataclasses.replace(document, status=status, reason=text.reason, reason_code=text.reason_code)


def _position_metadata(chunk: PageChunk) -> dict[str, Any]:
    """Return the metadata that locate a chunk in its file: its lines, if they are known. For source code, also return
    the programming language and the names of functions and classes."""
    if not chunk.page.code:
        return {"lines": list(chunk.lines)} if chunk.lines else {}
    return {"code": chunk.page.code, "symbol": chunk.symbol, "lines": list(chunk.lines or ())}


def _beginning(text: DocumentText) -> str:
    """Return the first `_LANGUAGE_SAMPLE` characters of prose, from which the language is detected."""
    parts: list[str] = []
    left = _LANGUAGE_SAMPLE
    for page in text.pages:
        if page.status == "text" and not page.code and left > 0:
            parts.append(page.text[:left])
            left -= len(parts[-1]) + 1
    return " ".join(parts)
