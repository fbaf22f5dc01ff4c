"""`RAGTool`: uploads documents, and answers questions about them with citations of the exact page."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, Unpack

from agentformer.errors import Conflict, InvalidInput
from agentformer.http.fetch_rules import Fetcher
from agentformer.memory.backends import all_entries
from agentformer.memory.batches import existing_document
from agentformer.memory.usage import UsageCounter
from agentformer.rag.documents import METADATA_REPLACED, Document, KeyedLock, document_of, page_of
from agentformer.rag.folder_files import Folders, SizeLimits, checked_folder, folder_in_roots, is_home
from agentformer.rag.folder_sync import DocumentChanges, FolderSync, SyncProgress, SyncReport
from agentformer.rag.originals import Originals
from agentformer.rag.uploads import (
    OnConflict,
    Origin,
    Placement,
    checked_on_conflict,
    place,
    place_renamed,
    read_upload,
    unchanged,
    with_origin,
)
from agentformer.records import fields
from agentformer.tools.questions import ChunkFilters, Questions
from agentformer.types import DEFAULT_NAMESPACE, Answer, AnswerEvent, MemoryBackend, MemoryEntry, Page, Scope

if TYPE_CHECKING:
    from agentformer.rag.answer.context import PassageContext
    from agentformer.rag.ingest import IngestPipeline, Progress

_ATTEMPTS = 20  # attempts at an upload; each failed attempt means that another process has changed the same document
PENDING = (
    "the embedder was unavailable; searches find the document only by its words until you run `agentformer reindex`"
)
Retire = Callable[[Sequence[MemoryEntry], str], None]  # receives the former versions, and the id of the new one
_HOME = "is a memory home, not a folder of documents; use `agentformer sync` or `af.markdown.sync`"


class UploadOptions(TypedDict, total=False):
    """The options of an upload; see `RAGTool.upload`."""

    namespace: str
    metadata: Mapping[str, Any] | None
    password: str | None
    progress: Progress | None
    on_conflict: OnConflict
    retire: Retire | None


@dataclasses.dataclass(frozen=True, slots=True)
class UploadSources:
    """The files and URLs that uploads and syncs accept: the size limits of files, the folders that a sync may read, and
    the object that fetches documents from URLs."""

    limits: SizeLimits
    folders: Folders
    fetcher: Fetcher


class StoredDocuments:
    """The methods of `RAGTool` that list, read and remove stored documents."""

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
        return self._with_state(document_of(existing_document(self._backend, document_id, namespace)))

    def original(self, document_id: str, *, namespace: str | None = None) -> bytes:
        """Return the uploaded bytes of a document. Raises `NotFound` if the document or its file is missing."""
        return self._originals.get(existing_document(self._backend, document_id, namespace).metadata["sha256"])

    def chunks(
        self, document_id: str, *, namespace: str | None = None, after: str = "", limit: int = 100
    ) -> list[MemoryEntry]:
        """Return at most `limit` chunks of a document in the order of the text. The list begins after the chunk with
        the id `after`. Raises `NotFound` if there is no such document."""
        entry = existing_document(self._backend, document_id, namespace)
        return self._page(Scope(entry.namespace, kinds=("chunk",), document_id=document_id), after, limit)

    def pages(self, document_id: str, *, namespace: str | None = None) -> list[Page]:
        """Return the pages of a document with their stored text. The offsets in citations are positions in this text.
        Raises `NotFound` if there is no such document."""
        entry = existing_document(self._backend, document_id, namespace)
        scope = Scope(entry.namespace, kinds=("page",), document_id=document_id)
        return [page_of(page) for page in all_entries(self._backend, scope)]

    def remove(self, document_id: str, *, namespace: str | None = None, expected_version: int | None = None) -> None:
        """Delete a document, everything that was made from it, and its original file. Raises `NotFound` if there is no
        such document, and `Conflict` if `expected_version` is given and the document has another version."""
        existing_document(self._backend, document_id, namespace)
        self._backend.remove([document_id], expected_version)
        self._originals.sweep()

    def _with_state(self, document: Document) -> Document:
        """Return the document with its current status: `pending` if a part of it still waits for the embedder."""
        if document.status != "ready" or not self._backend.pending(Scope(document.namespace, document_id=document.id)):
            return document
        replaced = f"{METADATA_REPLACED}; " if document.reason.startswith(METADATA_REPLACED) else ""
        return dataclasses.replace(document, status="pending", reason=f"{replaced}{PENDING}", reason_code="pending")

    def _page(self, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
        after = fields.text("after", after, fields.MAX_NAME)
        return [*self._backend.list(scope, after=after, limit=fields.limit("limit", limit))]


class RAGTool(StoredDocuments):
    """Uploads documents and answers questions about them. Thread-safe if the backend is thread-safe. `ingest` returns
    the pipeline that stores documents, and builds it at the first call."""

    def __init__(
        self,
        backend: MemoryBackend,
        ingest: Callable[[], IngestPipeline],
        questions: Questions,
        originals: Originals,
        usage: UsageCounter,
        sources: UploadSources,
    ) -> None:
        self._backend = backend
        self._ingest = ingest
        self._questions = questions
        self._originals = originals
        self._usage = usage
        self._sources = sources
        self.sync_roots = sources.folders.allowed
        self._uploads = KeyedLock()

    def reingest(self, document: MemoryEntry) -> Document:
        """Ingest a stored document again from its original file. The new version has new ids and the same name and
        origin, and replaces the stored document. Raises `NotFound` if the original file is missing, and `Conflict` if
        another caller replaces or removes the document at the same time."""
        known = document_of(document)
        data, pipeline = self._originals.get(known.sha256), self._ingest()
        scope = Scope(known.namespace, kinds=("document",), metadata={"sha256": known.sha256})
        with self._uploads.hold((known.namespace, known.sha256)):
            expected = {document.id, *(entry.id for entry in all_entries(self._backend, scope))}
            placement = Placement(known, (document,), None, unchanged([(scope, expected)]))
            return pipeline.store(data, pipeline.read(data, known.name), placement)

    def rehearse(self, document: Document, password: str | None = None) -> Document:
        """Read and embed the original of a document again, and store nothing. Return the document with the status and
        the reason that a new upload would have. This method is for a caller that must not learn that its upload was
        `unchanged`: it takes as long as a new upload. Raises `NotFound` if the original file is missing."""
        result = self._ingest().rehearse(self._originals.get(document.sha256), document, password)
        if result.status != "pending":
            return result
        return dataclasses.replace(result, reason=PENDING, reason_code="pending")

    def ready(self) -> None:
        """Build the objects for uploads and questions before the first call. Raises an error if this fails."""
        self._ingest()
        self._questions.ready()

    def upload(
        self,
        file: str | os.PathLike[str] | bytes | BinaryIO,
        *,
        name: str = "",
        origin: Origin | None = None,
        **options: Unpack[UploadOptions],
    ) -> Document:
        """Ingest a document. `file` is a path, bytes, or an open binary file. The `options` are `namespace`,
        `metadata`, `password`, `progress`, `on_conflict` and `retire`.

        A document is identified by the absolute path of its file, or by its `name` if it has no path. Bytes have no
        path. An open file has a path only if no `name` is given. `origin` can give a path for bytes and open files, and
        the folder that the file belongs to. `name` (default: the name of the file) may begin with folders. If another
        document has this name, folders of the path are added before the name.

        If the stored document has the same bytes, it is returned with `unchanged` set to True, and a missing original
        file is stored again. If `metadata` is given and differs, a new version with this metadata replaces the
        document, and the `reason` says so. In both cases, nothing is read or embedded again.

        If the stored document has other bytes, `on_conflict` decides. `replace` replaces the stored version in one
        step, and `replaced` in the result is the id of this former version; without `metadata`, the new version keeps
        the former metadata. `keep-both` stores the file under a new name such as `report (2).pdf`. `fail` raises
        `Conflict`. If `retire` is given, it hides a replaced version that searches find, which is then not removed.

        Problems of the content are reported in the `status` and `reason` of the result. Raises `InvalidInput` for a
        path that is not a readable file."""
        if unknown := options.keys() - UploadOptions.__annotations__.keys():
            raise TypeError(f"upload() got an unexpected keyword argument {min(unknown)!r}")
        namespace = fields.name("namespace", options.get("namespace", DEFAULT_NAMESPACE))
        metadata = options.get("metadata")
        stored, conflict = fields.stored_metadata(metadata), checked_on_conflict(options.get("on_conflict", "replace"))
        data, document = read_upload(file, name, origin, self._sources.limits.file)
        document = dataclasses.replace(document, namespace=namespace, metadata=stored)
        choose = functools.partial(place, self._backend, document, conflict, given_metadata=metadata is not None)
        with self._uploads.hold((namespace, document.sha256)):  # concurrent uploads of the same bytes are `unchanged`
            uploaded = self._upload(
                data, document, choose, options.get("password"), options.get("progress"), options.get("retire")
            )
            return self._with_state(uploaded)

    def upload_url(
        self,
        url: str,
        *,
        name: str = "",
        allow_private: bool = False,
        listed: bool = False,
        **options: Unpack[UploadOptions],
    ) -> Document:
        """Ingest the document at a URL (http or https). The URL is the `origin` of the document and identifies it, so a
        later call with the same URL finds the stored document. `options` are those of `upload`.

        The hosts in the settings `url_hosts` and `url_private_hosts` are allowed. If `listed` is true, no other host is
        allowed. Servers set `listed`, because their clients choose the URL. If `listed` is false and `url_hosts` is
        empty, every host with a public address is allowed. If `allow_private` is true, the host may have a private
        address. Raises `InvalidInput` for an invalid URL, `FetchRefused` for a host or an address that is not allowed,
        and `FetchFailed` if the document cannot be loaded."""
        download = self._sources.fetcher.get(url, allow_private=allow_private, listed=listed)
        return self.upload(download.data, name=name or download.name, origin=Origin(download.url), **options)

    def sync(
        self,
        folder: str | os.PathLike[str],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: Mapping[str, Any] | None = None,
        delete: bool = False,
        progress: SyncProgress | None = None,
        seconds: float = math.inf,
    ) -> SyncReport:
        """Make the documents of a folder equal to its files, and return what was done.

        New and changed files are stored, a file that was moved in the folder keeps its chunks and vectors, and the
        documents of files that are gone are removed. A file whose size, time and number (inode) are the same as at the
        last sync is not read. `docs/FOLDERS.md` says which files are left out. `metadata` is stored with new and
        changed documents. `progress` receives the number of handled files and of all files. After `seconds`, the sync
        ends with the current file; `left` of the result is the number of remaining files, which the next sync handles.

        A file that cannot be read is in `failed` of the result, and the other files are stored. Raises `InvalidInput`
        if the folder is a memory home, or if `delete` is false and the folder or over half of its files are gone."""
        path = checked_folder(folder)
        if is_home(path):
            raise InvalidInput("folder", _HOME)
        namespace = fields.name("namespace", namespace)
        stored = fields.stored_metadata(metadata) if metadata is not None else None
        changes = DocumentChanges(
            lambda data, document: self._put(data, document, given_metadata=stored is not None),
            self._rename,
            lambda document_id: self.remove(document_id, namespace=namespace),
            lambda head: self._ingest().is_text(head),
        )
        sync = FolderSync(changes, path, namespace, stored, self._sources.limits, self._sources.folders.own)
        documents = all_entries(self._backend, sync.scope)
        return sync.run(documents, delete=delete, progress=progress, seconds=seconds)

    def sync_allowed(self, folder: str, **options: Any) -> SyncReport:
        """Sync a folder for a caller that may choose only folders below the folders of the setting `sync_roots`.
        `options` are those of `sync`. Raises `Forbidden` for another folder, and the errors of `sync`."""
        return self.sync(folder_in_roots(folder, self.sync_roots), **options)

    def _put(self, data: bytes, document: Document, *, given_metadata: bool) -> Document:
        choose = functools.partial(place, self._backend, document, "replace", given_metadata=given_metadata)
        with self._uploads.hold((document.namespace, document.sha256)):
            return self._with_state(self._upload(data, document, choose, None, None))

    def _rename(self, data: bytes, former_id: str, document: Document) -> Document:
        former = next(iter(self._backend.get([former_id])), None)
        if former is None:
            raise Conflict(f"the document of {document.name[:200]!r} was removed in the meantime; sync again")
        parts = Scope(document.namespace, document_id=former.id, include_archived=True)
        with self._uploads.hold((document.namespace, document.sha256)):
            placement = place_renamed(self._backend, former, document)
            return self._ingest().store_renamed(data, placement, all_entries(self._backend, parts))

    def _upload(
        self,
        data: bytes,
        document: Document,
        choose: Callable[[], Placement],
        password: str | None,
        progress: Progress | None,
        retire: Retire | None = None,
    ) -> Document:
        """Store the document unless its bytes are stored already, and return the stored document. `choose` decides the
        name of the document, and which stored document is replaced. If another process changes a document in the
        meantime, `choose` is called again. Raises `Conflict` if this happens too often."""
        text = None
        for _ in range(_ATTEMPTS):
            placement = choose()
            try:
                if placement.same and not placement.new_metadata:
                    if retire and placement.kept:
                        retire(placement.kept, placement.same.id)
                    return self._unchanged(data, document, placement.same)
                pipeline = self._ingest()
                if placement.same:
                    parts = Scope(document.namespace, document_id=placement.same.id, include_archived=True)
                    return pipeline.store_metadata(data, placement, all_entries(self._backend, parts))
                text = text or pipeline.read(data, document.name, password)
                findable = (entry for entry in placement.former if retire and entry.metadata["status"] == "ready")
                placement = dataclasses.replace(placement, kept=tuple(findable))
                stored = pipeline.store(data, text, placement, progress)
            except Conflict:
                continue
            if retire and placement.kept and stored.id:
                retire(placement.kept, stored.id)
            return stored
        raise Conflict(
            f"other uploads of {document.name[:200]!r} are in progress; upload the file again when they have ended"
        )

    def _unchanged(self, data: bytes, document: Document, same: MemoryEntry) -> Document:
        """Handle an upload whose bytes are stored already, and return the document of the entry `same`. A missing file
        is stored again, and missing vectors are computed. Raises `Conflict` if another process has changed `same`."""
        same = with_origin(self._backend, same, document)
        if self._backend.pending(Scope(same.namespace, document_id=same.id)):
            self._backend.embed_pending()
        self._originals.restore(data)
        self._usage.count([same.id], others=1)
        return dataclasses.replace(document_of(same), unchanged=True)

    def query(
        self,
        question: str,
        *,
        top_k: int | None = None,
        max_tokens: int | None = None,
        extractive: bool = False,
        **scope: Unpack[ChunkFilters],
    ) -> Answer:
        """Answer a question from documents and memories. The answer has citations, hits, warnings and timings.

        An answer without a language model quotes sentences of the best `top_k` chunks and memories, which are the hits
        of the answer. The default of `top_k` is the setting `top_k`, normally 3. With this default, further hits (up to
        the fifth) from the same documents may be quoted too, and are then among the hits of the answer.

        A language model receives as many passages as `context` returns. If `top_k` is given, it receives only passages
        of the best `top_k` hits. `max_tokens` (1..4096) limits its answer. If `extractive` is true, no language model
        is called, and the answer consists of quotes.

        `scope` contains filters: `namespace`, `metadata` (the metadata of a document must have equal values under these
        keys; `filters` is another name), `document_id` (only this document), `since` and `until` (only entries of this
        period; a document has the time when it was stored), `as_of` (entries that held at this time). `sources` is
        `documents`, `memories` or both (the default). Memories are facts, messages, summaries and other entries.
        Memories of a user are used only with this `user_id`. Raises `InvalidInput` for an empty question or an invalid
        filter, and `NotFound` for an unknown document.
        """
        return self._questions.answer(question, scope, top_k=top_k, max_tokens=max_tokens, extractive=extractive)

    def stream(
        self,
        question: str,
        *,
        top_k: int | None = None,
        max_tokens: int | None = None,
        **scope: Unpack[ChunkFilters],
    ) -> Generator[AnswerEvent, None, None]:
        """Return a generator that yields the answer to a question in pieces, and at the end the complete `Answer`. The
        timings of this `Answer` include `first_token_ms`. If the language model stops with an error, an `AnswerFault`
        is yielded before the `Answer`.

        The parameters and errors are those of `query`. An error is raised by this call, and not by the first event.
        Closing the generator stops the language model.
        """
        return self._questions.stream(question, scope, top_k=top_k, max_tokens=max_tokens)

    def context(self, question: str, *, max_tokens: int | None = None, **scope: Unpack[ChunkFilters]) -> PassageContext:
        """Return the passages that a language model needs to answer a question, best first, with at most `max_tokens`
        tokens together (default: `Settings.answer_context_tokens`). No language model is called.

        `text` of the result can be put into a prompt: it contains the passages with their numbers and sources. Tokens
        are counted as the embedding model counts them. `scope` and the errors are those of `query`.
        """
        return self._questions.context(question, scope, max_tokens=max_tokens)
