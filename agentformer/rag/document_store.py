"""`DocumentStore`: uploads, replaces, renames, lists and removes the documents of a memory.

Every change of a document is one transaction, and every way to store one has the same steps: decide which stored
document it replaces (`uploads.place`), read the file and cut it into chunks (`IngestPipeline`), and store the entries
together with the original file (`DocumentStore._commit`). The transaction checks that the stored documents are still
those of the decision. If another caller has changed them, the steps are repeated.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, Unpack

from agentformer.errors import AgentFormerError, Conflict, retried
from agentformer.lazy import Lazy
from agentformer.rag.documents import (
    FORMER_KEPT,
    METADATA_REPLACED,
    NOT_READ,
    STORED,
    Document,
    KeyedLock,
    copies,
    document_entry,
    document_of,
    page_of,
)
from agentformer.rag.originals import Originals
from agentformer.rag.uploads import (
    OnConflict,
    Origin,
    Placement,
    Refused,
    checked_on_conflict,
    place,
    place_again,
    place_renamed,
    read_upload,
    with_origin,
)
from agentformer.records import fields
from agentformer.records.offers import vectors_of
from agentformer.search.reading import all_entries, existing_document
from agentformer.types import DEFAULT_NAMESPACE, DocumentText, MemoryBackend, MemoryEntry, Page, Scope, Stopped

if TYPE_CHECKING:
    from agentformer.rag.chunks import PageChunk
    from agentformer.rag.ingest import IngestPipeline, Progress

_CUT_AHEAD = 1_000_000  # characters of a text that is cut ahead, in about a second, which cannot be interrupted
_BUSY = "other uploads of {!r} are in progress; upload the file again when they have ended"
PENDING = (
    "the embedder was unavailable; searches find the document only by its words until you run `agentformer reindex`"
)
Retire = Callable[[Sequence[MemoryEntry], str], None]  # receives the former versions, and the id of the new one


class UploadOptions(TypedDict, total=False):
    """The options of an upload except `progress`; see `DocumentStore.upload`."""

    namespace: str
    user_id: str | None
    metadata: Mapping[str, Any] | None
    password: str | None
    on_conflict: OnConflict
    retire: Retire | None


@dataclasses.dataclass(frozen=True, slots=True)
class Upload:
    """A file whose bytes are `data`, and the document as which `DocumentStore.put` stores it. `text` is its text, which
    is read at its first use. `chunks` has chunks that are cut already, by the name of the document, which their context
    lines contain. `given_metadata` is True if the metadata of `document` come from the caller. `on_conflict` and
    `retire` are those of `DocumentStore.upload`."""

    data: bytes
    document: Document
    text: Lazy[DocumentText]
    chunks: dict[str, list[PageChunk]]
    given_metadata: bool
    on_conflict: OnConflict
    retire: Retire | None


class DocumentStore:
    """The documents of a memory. Thread-safe if the backend is thread-safe. `used` is called with the id of a stored
    document that an upload has found unchanged. An uploaded file may have at most `max_bytes` bytes."""

    def __init__(
        self,
        backend: MemoryBackend,
        ingest: Lazy[IngestPipeline],
        originals: Originals,
        used: Callable[[str], None],
        max_bytes: int,
    ) -> None:
        self._backend = backend
        self._vectors = vectors_of(backend)
        self._ingest = ingest
        self._originals = originals
        self._used = used
        self._max_bytes = max_bytes
        self._uploads = KeyedLock()

    def upload(
        self,
        file: str | os.PathLike[str] | bytes | BinaryIO,
        *,
        name: str = "",
        origin: Origin | None = None,
        progress: Progress | None = None,
        **options: Unpack[UploadOptions],
    ) -> Document:
        """Ingest a document. `file` is a path, bytes, or an open binary file. The `options` are `namespace`, `user_id`,
        `metadata`, `password`, `on_conflict` and `retire`.

        With `user_id`, the document belongs to this user: an upload of another user, or without a user, neither
        replaces nor finds it, and `AgentFormer.forget_user` deletes it. Searches treat it as a memory of the user.

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
        path that is not a readable file.

        >>> document = af.rag.upload("handbook.txt", metadata={"year": 2026})
        >>> document.status, document.pages
        ('ready', 1)
        """
        return self.put(self.prepare(file, name=name, origin=origin, **options), progress)

    def prepare(
        self,
        file: str | os.PathLike[str] | bytes | BinaryIO,
        *,
        name: str = "",
        origin: Origin | None = None,
        stopped: Stopped | None = None,
        **options: Unpack[UploadOptions],
    ) -> Upload:
        """Check the parameters of an upload, get the bytes of the file, and return both for `put`. The parameters and
        errors are those of `upload`. With `stopped`, the text of a new file is read, too; see `prepare_bytes`."""
        if unknown := options.keys() - UploadOptions.__annotations__.keys():
            raise TypeError(f"upload() got an unexpected keyword argument {min(unknown)!r}")
        namespace = fields.name("namespace", options.get("namespace", DEFAULT_NAMESPACE))
        user_id = fields.optional_name("user_id", options.get("user_id"))
        metadata = options.get("metadata")
        stored, conflict = fields.stored_metadata(metadata), checked_on_conflict(options.get("on_conflict", "replace"))
        data, document = read_upload(file, name, origin, self._max_bytes)
        return self.prepare_bytes(
            data,
            dataclasses.replace(document, namespace=namespace, user_id=user_id, metadata=stored),
            given_metadata=metadata is not None,
            password=options.get("password"),
            on_conflict=conflict,
            retire=options.get("retire"),
            stopped=stopped,
        )

    def prepare_bytes(
        self,
        data: bytes,
        document: Document,
        *,
        given_metadata: bool,
        password: str | None = None,
        on_conflict: OnConflict = "replace",
        retire: Retire | None = None,
        stopped: Stopped | None = None,
    ) -> Upload:
        """Do what `prepare` does for a caller that has the bytes and the document of the file already. With `stopped`,
        the file is read and cut into chunks now, unless its bytes are stored already; the reader is ended when
        `stopped` returns True."""
        chunks: dict[str, list[PageChunk]] = {}
        text = Lazy(lambda: self._ingest.get().read(data, document.name, password, stopped=stopped))
        if stopped:
            with suppress(AgentFormerError):  # `put` raises it
                placement = place(self._backend, document, on_conflict, given_metadata=given_metadata)
                name = placement.document.name
                if not placement.same and sum(len(page.text) for page in text.get().pages) <= _CUT_AHEAD:
                    chunks[name] = self._ingest.get().chunks(text.get(), name)
        return Upload(data, document, text, chunks, given_metadata, on_conflict, retire)

    def put(self, upload: Upload, progress: Progress | None = None) -> Document:
        """Store an upload, unless its bytes are stored already. Return the stored document. `progress` is that of
        `upload`. Raises `Conflict` if other callers change the document again and again."""
        data, document, retire = upload.data, upload.document, upload.retire

        def attempt() -> Document:
            placement = place(self._backend, document, upload.on_conflict, given_metadata=upload.given_metadata)
            if placement.same:
                if placement.new_metadata:
                    return self._with_metadata(data, placement.same, placement)
                if retire and placement.kept:  # an interrupted upload has not hidden them
                    retire(placement.kept, placement.same.id)
                return self._unchanged(data, document, placement.same)
            searchable = (entry for entry in placement.former if retire and entry.metadata["status"] == "ready")
            placement = dataclasses.replace(placement, kept=tuple(searchable))
            new, text = placement.document, upload.text.get()
            entries = self._ingest.get().entries(new, text, progress, upload.chunks.get(new.name))
            stored = self._commit(data, entries, placement, progress)
            if retire and placement.kept and stored.id:
                retire(placement.kept, stored.id)
            return stored

        with self._uploads.hold((document.namespace, document.sha256)):  # concurrent equal uploads are `unchanged`
            busy = _BUSY.format(document.name[:200])
            return self._with_state(retried(attempt, unless=(Refused,), busy=busy))

    def rename(self, data: bytes, former_id: str, document: Document) -> Document:
        """Rename the stored document `former_id`, whose bytes are `data`: it gets the name, the origin and the stamp of
        `document`, and keeps its chunks and vectors. Raises `Conflict` if another caller changes it meanwhile."""
        former = next(iter(self._backend.get([former_id])), None)
        if former is None:
            raise Conflict(f"the document of {document.name[:200]!r} was removed in the meantime; sync again")
        with self._uploads.hold((document.namespace, document.sha256)):
            placement = place_renamed(self._backend, former, document)
            return self._commit(data, copies(former, self._parts(former), placement.document, renamed=True), placement)

    def keep(self, data: bytes, document: Document) -> Document:
        """Store a file without reading it, as a document with the status `stored`. It has no text, so no search finds
        it. A later upload of the same file to the same namespace reads the file. If a document with the same name has
        the same bytes, return this document. If it has other bytes, add a number to the name of the file. Raises
        `StoreError` if the file cannot be stored, and `Conflict` if others change the documents of this name again and
        again."""

        def attempt() -> Document:
            placement = place(self._backend, document, "keep-both")
            former = [entry for entry in placement.former if entry.metadata["status"] == STORED]
            if same := [*([placement.same] if placement.same else []), *former]:
                self._originals.restore(data)
                return dataclasses.replace(document_of(same[0]), unchanged=True)
            return self._commit(data, [document_entry(placement.document, NOT_READ)], placement)

        return retried(attempt, busy=_BUSY.format(document.name[:200]))

    def forget_text(self, entry: MemoryEntry) -> Document:
        """Remove the text of a document and keep its file. Return the document, which has a new id. Raises `NotFound`
        if the file is missing, and `Conflict` if another caller changes the document at the same time."""
        placement = place_again(self._backend, entry)
        data = self._originals.get(placement.document.sha256)
        return self._commit(data, [document_entry(placement.document, NOT_READ)], placement)

    def reingest(self, entry: MemoryEntry) -> Document:
        """Ingest a stored document again from its original file. The new version has new ids and the same name and
        origin, and replaces the stored document, unless its text is unusable now. Raises `NotFound` if the original
        file is missing, and `Conflict` if another caller replaces or removes the document at the same time."""
        known = document_of(entry)
        data, pipeline = self._originals.get(known.sha256), self._ingest.get()
        with self._uploads.hold((known.namespace, known.sha256)):
            placement = place_again(self._backend, entry)
            entries = pipeline.entries(placement.document, pipeline.read(data, known.name))
            return self._commit(data, entries, placement)

    def rehearse(self, document: Document, password: str | None = None) -> Document:
        """Read and embed the original of a document again, and store nothing. Return the document with the status and
        the reason that a new upload would have. This method is for a caller that must not learn that its upload was
        `unchanged`: it takes as long as a new upload. Raises `NotFound` if the original file is missing."""
        embed = bool(self._vectors.spaces())  # else the backend stores no vectors
        data = self._originals.get(document.sha256)
        result = self._ingest.get().rehearse(data, document, password, embed=embed)
        if result.status != "pending":
            return result
        return dataclasses.replace(result, reason=PENDING, reason_code="pending")

    def is_text(self, head: bytes) -> bool:
        """Return whether a file that begins with these bytes is text."""
        return self._ingest.get().is_text(head)

    def documents(
        self, *, namespace: str = DEFAULT_NAMESPACE, user_id: str | None = None, or_nobody: bool = False
    ) -> list[Document]:
        """Return every document of the namespace, or of one user, the oldest first. With `or_nobody`, documents that
        belong to no user are included. A document with the status `pending` has no vectors yet, but searches find the
        document by its words.

        >>> document = af.rag.upload("handbook.txt")
        >>> [document.name for document in af.rag.documents()]
        ['handbook.txt']
        """
        scope = _documents_of(namespace, user_id, or_nobody=or_nobody)
        return [self._with_state(document_of(entry)) for entry in all_entries(self._backend, scope)]

    def page_of_documents(
        self,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        user_id: str | None = None,
        or_nobody: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> list[Document]:
        """Return at most `limit` of the documents that `documents` returns. The list begins after the document with the
        id `after`."""
        scope = _documents_of(namespace, user_id, or_nobody=or_nobody)
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

    def _commit(
        self, data: bytes, entries: list[MemoryEntry], placement: Placement, progress: Progress | None = None
    ) -> Document:
        """Store the entries of a document in one transaction, in which it replaces the documents `placement.former`.
        The original file is stored, too, unless the file has no usable text and its former version was not kept as a
        file. If a usable former version would be replaced by a document without usable text, nothing is stored, and the
        returned document says so. Raises `Conflict` if another caller has changed the documents on which the placement
        depends."""
        new = entries[0].metadata
        status, former = new["status"], {entry.metadata["status"] for entry in placement.former}
        if status not in ("ready", STORED) and "ready" in former:
            reason = new["reason"] + FORMER_KEPT
            failed = dataclasses.replace(placement.document, status=status, reason=reason, former_kept=True)
            return dataclasses.replace(failed, reason_code=new["reason_code"])
        with_file = status in ("ready", STORED) or STORED in former
        progress = progress if status == "ready" else None
        with self._originals.storing(entries[:1], [data]) if with_file else nullcontext():
            self._backend.store(entries, replacing=placement.replacing, check=placement.check, progress=progress)
        if not with_file:
            self._originals.sweep()
        return dataclasses.replace(document_of(entries[0]), replaced=placement.replaced)

    def _with_metadata(self, data: bytes, same: MemoryEntry, placement: Placement) -> Document:
        """Store a new version of the document `same` with the metadata of the placement."""
        document = self._commit(data, copies(same, self._parts(same), placement.document), placement)
        reason = f"{METADATA_REPLACED}; {document.reason}" if document.reason else METADATA_REPLACED
        return dataclasses.replace(document, reason=reason, reason_code=document.reason_code or "metadata_replaced")

    def _unchanged(self, data: bytes, document: Document, same: MemoryEntry) -> Document:
        """Handle an upload whose bytes are stored already, and return the document of the entry `same`. A missing file
        is stored again, and missing vectors are computed. Raises `Conflict` if another process has changed `same`."""
        same = with_origin(self._backend, same, document)
        if self._vectors.pending(Scope(same.namespace, document_id=same.id)):
            self._vectors.embed_pending()
        self._originals.restore(data)
        self._used(same.id)
        return dataclasses.replace(document_of(same), unchanged=True)

    def _parts(self, document: MemoryEntry) -> list[MemoryEntry]:
        """Return the pages and chunks of a document."""
        scope = Scope(document.namespace, document_id=document.id, include_archived=True)
        return [*all_entries(self._backend, scope)]

    def _with_state(self, document: Document) -> Document:
        """Return the document with its current status: `pending` if a part of it still waits for the embedder."""
        if document.status != "ready" or not self._vectors.pending(Scope(document.namespace, document_id=document.id)):
            return document
        replaced = f"{METADATA_REPLACED}; " if document.reason.startswith(METADATA_REPLACED) else ""
        return dataclasses.replace(document, status="pending", reason=f"{replaced}{PENDING}", reason_code="pending")

    def _page(self, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
        after = fields.text("after", after, fields.MAX_NAME)
        return [*self._backend.list(scope, after=after, limit=fields.limit("limit", limit))]


def _documents_of(namespace: str, user_id: str | None, *, or_nobody: bool) -> Scope:
    user_id, or_nobody = fields.optional_name("user_id", user_id), fields.flag("or_nobody", or_nobody)
    return Scope(fields.name("namespace", namespace), kinds=("document",), user_id=user_id, or_nobody=or_nobody)
