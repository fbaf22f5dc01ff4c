"""The ingestion of documents: read a file, cut the text into chunks, and store the chunks with their embeddings. Files
can also be kept without being read, so that searches do not find their text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

from agentformer.embedders import token_spans
from agentformer.errors import Conflict, DocumentError, EmbedderError, EncryptedDocument
from agentformer.index.embedding.windows import WindowEmbedder
from agentformer.rag.chunks import CountTokens, PageChunk, cut
from agentformer.rag.documents import FORMER_KEPT, METADATA_REPLACED, Document, document_of
from agentformer.rag.originals import Originals
from agentformer.rag.uploads import Placement, place, unchanged
from agentformer.readers import ReadLimits, read
from agentformer.readers.formats import looks_like_text
from agentformer.text.code import CODE_LANGUAGE
from agentformer.text.languages import detect_language
from agentformer.types import DocumentStatus, DocumentText, Embedder, MemoryBackend, MemoryEntry, Scope, Source, new_id

Progress = Callable[[int, int], None]  # number of embedded windows, number of all windows
STORED: DocumentStatus = "stored"  # the status of a document whose file is stored and not read
_REASON = "the file is stored and not read; upload it, or add it to a vector store, so that a search can find its text"
_PAGE = 100  # documents read at a time
_ATTEMPTS = 20  # each failed attempt means that another process has changed the same document
_MAX_TITLE = 300  # code points; the title is stored with every chunk
_LANGUAGE_SAMPLE = 20_000  # code points of a document from which its language is detected


@runtime_checkable
class TextProgress(Protocol):
    """A progress callback that also receives the numbers of pages and chunks of a file. These are passed to its method
    `read`, once, after the text of the file was cut into chunks."""

    def __call__(self, done: int, windows: int, /) -> None: ...

    def read(self, pages: int, chunks: int) -> None: ...


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

    def read(self, data: bytes, name: str, password: str | None = None) -> DocumentText:
        """Return the text of a file. If the file cannot be read, the returned text has no pages, and its status and
        reason say why."""
        try:
            return read(data, name, password=password, limits=self.limits)
        except DocumentError as error:
            status: DocumentStatus = "encrypted" if isinstance(error, EncryptedDocument) else "failed"
            return DocumentText("", (), status=status, reason=str(error), reason_code=error.code)

    def is_text(self, head: bytes) -> bool:
        """Return whether a file that begins with these bytes is text."""
        return looks_like_text(head)

    def store(
        self, data: bytes, text: DocumentText, placement: Placement, progress: Progress | TextProgress | None = None
    ) -> Document:
        """Store the text of a file as a document in one transaction, and return the stored document. The new document
        replaces the documents `placement.former`. If the file has no usable text, the returned document has a status
        and a reason, and a usable former version is kept. Raises `Conflict` if another caller has stored or removed one
        of the documents that the placement depends on, and `StoreError` if the document cannot be stored."""
        if text.status != "ready":
            return self._store_unusable(data, text, placement)
        entries = self._entries(placement.document, text)
        if isinstance(progress, TextProgress):
            progress.read(len(text.pages), entries[0].metadata["chunks"])
        return self._commit(data, entries, placement, progress)

    def rehearse(self, data: bytes, document: Document, password: str | None) -> Document:
        """Do the work of an upload again without storing anything: read the file, cut its text, and embed the chunks.
        The upload of a stored file then takes as long as that of a new file, and does not reveal that the file is
        stored. Return the document with the status and the reason that a new upload would have."""
        text = self.read(data, document.name, password)
        if text.status != "ready":
            return dataclasses.replace(document, status=text.status, reason=text.reason, reason_code=text.reason_code)
        entries = self._entries(document, text)
        chunks = [entry for entry in entries if entry.kind == "chunk"]
        try:
            if self.backend.spaces():  # else the backend stores no vectors
                WindowEmbedder(self.embedder, lambda hashes: set(), lambda rows: None).embed(chunks)
        except EmbedderError:
            return dataclasses.replace(document, status="pending")
        return dataclasses.replace(document, status="ready", reason=text.reason, reason_code=text.reason_code)

    def store_metadata(self, data: bytes, placement: Placement, parts: Iterable[MemoryEntry]) -> Document:
        """Store a new version of the document `placement.same` in one transaction, and return the new version. The new
        version has the metadata of the upload, and copies of `parts`, the stored pages and chunks. Nothing is read or
        embedded again. Raises `Conflict` and `StoreError` like `store`."""
        assert placement.same is not None
        document = self._commit(data, _copies(placement.same, parts, placement.document), placement)
        reason = f"{METADATA_REPLACED}; {document.reason}" if document.reason else METADATA_REPLACED
        return dataclasses.replace(document, reason=reason, reason_code=document.reason_code or "metadata_replaced")

    def store_renamed(self, data: bytes, placement: Placement, parts: Iterable[MemoryEntry]) -> Document:
        """Store a new version of the document `placement.same` in one transaction, and return the new version. It has
        the name and the origin of `placement.document`, and copies of `parts`, the stored pages and chunks, with
        unchanged context lines. Nothing is read or embedded again. Raises `Conflict` and `StoreError` like `store`."""
        assert placement.same is not None
        copies = _copies(placement.same, parts, placement.document)
        return self._commit(data, [_renamed(entry, placement.document) for entry in copies], placement)

    def _commit(
        self,
        data: bytes,
        entries: list[MemoryEntry],
        placement: Placement,
        progress: Progress | TextProgress | None = None,
    ) -> Document:
        with self.originals.storing(entries[:1], [data]):
            self.backend.store(entries, replacing=placement.replacing, check=placement.check, progress=progress)
        return dataclasses.replace(document_of(entries[0]), replaced=placement.replaced)

    def _entries(self, document: Document, text: DocumentText) -> list[MemoryEntry]:
        return document_entries(document, text, token_spans(self.embedder), self.chunk_tokens, self.chunk_overlap)

    def _store_unusable(self, data: bytes, text: DocumentText, placement: Placement) -> Document:
        """Store an entry for a file without usable text, and return the document. If a former version is usable,
        nothing is stored. The original file is stored only if the entry replaces a document with the status `stored`
        (see `KeptFiles`)."""
        document = placement.document
        if any(entry.metadata["status"] == "ready" for entry in placement.former):
            return dataclasses.replace(
                document,
                status=text.status,
                reason=text.reason + FORMER_KEPT,
                reason_code=text.reason_code,
                former_kept=True,
            )
        entry = document_entry(document, text, text.status, chunks=0)
        kept = any(former.metadata["status"] == "stored" for former in placement.former)  # its file stays
        with self.originals.storing([entry], [data]) if kept else nullcontext():
            self.backend.store([entry], replacing=placement.replacing, check=placement.check)
        self.originals.sweep()
        return dataclasses.replace(document_of(entry), replaced=placement.replaced)


def document_entries(
    document: Document, text: DocumentText, count: CountTokens, chunk_tokens: int, chunk_overlap: int
) -> list[MemoryEntry]:
    """Return the entries to store for a document: one entry for the document, one for each page, and one for each
    chunk. A chunk has at most `chunk_tokens` tokens. `count` returns the spans of the tokens of a text."""
    prose = _beginning(text)  # no language is guessed from code
    language = detect_language(prose) if prose else CODE_LANGUAGE
    chunks = list(cut(text, document.name, count, chunk_tokens, chunk_overlap))
    root = document_entry(document, text, "ready", chunks=len(chunks), language=language)
    page_entries = [
        MemoryEntry(
            id=new_id(),
            content=page.text if page.status == "text" else "",
            kind="page",
            namespace=document.namespace,
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


def _position_metadata(chunk: PageChunk) -> dict[str, Any]:
    """Return the metadata that locate a chunk in its file: its lines, if they are known. For source code, also return
    the programming language and the names of functions and classes."""
    if not chunk.page.code:
        return {"lines": list(chunk.lines)} if chunk.lines else {}
    return {"code": chunk.page.code, "symbol": chunk.symbol, "lines": list(chunk.lines or ())}


def _copies(same: MemoryEntry, parts: Iterable[MemoryEntry], upload: Document) -> list[MemoryEntry]:
    """Return copies of the entry of a document and of its parts, with new ids and with the metadata of the upload. A
    version that an older agentformer stored without an origin gets the origin of the upload."""
    language = same.metadata.get("language", "")
    origin = {"origin": upload.origin, "root": upload.root} if upload.origin else {}
    metadata = {**origin, **same.metadata, "given": {**upload.metadata}}
    root = dataclasses.replace(same, id=new_id(), metadata=metadata, updated_at=None, version=1)
    copies = [root]
    for part in parts:
        assert part.source is not None  # every part of a document has a source
        copy = dataclasses.replace(
            part,
            id=new_id(),
            parent_id=root.id,
            source=dataclasses.replace(part.source, document_id=root.id),
            updated_at=None,
            version=1,
        )
        if part.kind == "chunk":
            copy = dataclasses.replace(copy, metadata={"language": language, **upload.metadata})
        copies.append(copy)
    return copies


def _renamed(entry: MemoryEntry, document: Document) -> MemoryEntry:
    """Return an entry of a renamed document with the new name. `entry` is the entry of the document itself, of a page
    or of a chunk. Only the entry of the document itself also gets the new origin and the new stamp of the file (see
    `folder_sync`)."""
    if entry.kind == "document":
        place = {"name": document.name, "origin": document.origin, "root": document.root, "stamp": document.stamp}
        return dataclasses.replace(entry, content=document.name, metadata={**entry.metadata, **place})
    assert entry.source is not None
    title = PurePath(document.name).stem if entry.kind == "chunk" else entry.title
    return dataclasses.replace(entry, title=title, source=dataclasses.replace(entry.source, name=document.name))


def _beginning(text: DocumentText) -> str:
    """Return the first `_LANGUAGE_SAMPLE` characters of prose, from which the language is detected."""
    parts: list[str] = []
    left = _LANGUAGE_SAMPLE
    for page in text.pages:
        if page.status == "text" and not page.code and left > 0:
            parts.append(page.text[:left])
            left -= len(parts[-1]) + 1
    return " ".join(parts)


def document_entry(
    document: Document, text: DocumentText, status: DocumentStatus, *, chunks: int, language: str = ""
) -> MemoryEntry:
    """Return the entry to store for a document itself, without its pages and chunks."""
    return MemoryEntry(
        id=new_id(),
        content=document.name,
        kind="document",
        namespace=document.namespace,
        title=text.title[:_MAX_TITLE],
        metadata={
            "name": document.name,
            "sha256": document.sha256,
            "bytes": document.bytes,
            "media_type": text.media_type,
            "pages": len(text.pages),
            "chunks": chunks,
            "status": status,
            "reason": text.reason,
            "reason_code": text.reason_code,
            "unread_pages": sum(page.status != "text" and page.reason_code != "blank" for page in text.pages),
            "language": language,
            "given": dict(document.metadata),
            "origin": document.origin,
            "root": document.root,
            **({"stamp": document.stamp} if document.stamp else {}),
        },
    )


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
        text = DocumentText("", (), status=STORED, reason=_REASON, reason_code="stored")
        entry = document_entry(placement.document, text, STORED, chunks=0)
        with self._originals.storing([entry], [data]):
            self._backend.store([entry], replacing=placement.replacing, check=placement.check)
        return document_of(entry)
