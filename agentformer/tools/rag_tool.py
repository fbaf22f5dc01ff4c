"""`RAGTool`: the documents of a memory, and answers to questions with citations of the exact page."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from agentformer.errors import InvalidInput
from agentformer.lazy import Lazy
from agentformer.memory.usage import UsageCounter
from agentformer.rag.document_store import DocumentStore, UploadOptions
from agentformer.rag.documents import Document
from agentformer.rag.folder_files import Folders, SizeLimits, checked_folder, folder_in_roots, is_home
from agentformer.rag.folder_sync import FolderSync, SyncProgress, SyncReport
from agentformer.rag.originals import Originals
from agentformer.rag.uploads import Origin
from agentformer.records import fields
from agentformer.search.reading import all_entries
from agentformer.tools.questions import ChunkFilters, Questions
from agentformer.types import DEFAULT_NAMESPACE, Answer, AnswerEvent, MemoryBackend

if TYPE_CHECKING:
    from agentformer.http.fetch import Fetcher
    from agentformer.rag.answer.context import PassageContext
    from agentformer.rag.ingest import IngestPipeline, Progress

_HOME = "is a memory home, not a folder of documents; use `agentformer sync` or `af.markdown.sync`"


@dataclasses.dataclass(frozen=True, slots=True)
class UploadSources:
    """The files and URLs that uploads and syncs accept: the size limits of files, the folders that a sync may read, and
    the object that fetches documents from URLs."""

    limits: SizeLimits
    folders: Folders
    fetcher: Lazy[Fetcher]


class RAGTool(DocumentStore):
    """Uploads documents and answers questions about them. Thread-safe if the backend is thread-safe.

    For example:

        af.rag.upload("handbook.pdf").status  # "ready"
        af.rag.query("Who holds the keys?").citations[0].page  # 12
    """

    def __init__(
        self,
        backend: MemoryBackend,
        ingest: Lazy[IngestPipeline],
        questions: Questions,
        originals: Originals,
        usage: UsageCounter,
        sources: UploadSources,
    ) -> None:
        super().__init__(
            backend, ingest, originals, lambda document_id: usage.count([document_id], others=1), sources.limits.file
        )
        self._questions = questions
        self._sources = sources
        self.sync_roots = sources.folders.allowed

    def ready(self) -> None:
        """Build the objects for uploads and questions before the first call. Raises an error if this fails."""
        self._ingest.get()
        self._questions.ready()

    def upload_url(
        self,
        url: str,
        *,
        name: str = "",
        allow_private: bool = False,
        listed: bool = False,
        progress: Progress | None = None,
        **options: Unpack[UploadOptions],
    ) -> Document:
        """Ingest the document at a URL (http or https). The URL is the `origin` of the document and identifies it, so a
        later call with the same URL finds the stored document. `options` are those of `upload`.

        The hosts in the settings `url_hosts` and `url_private_hosts` are allowed. If `listed` is true, no other host is
        allowed. Servers set `listed`, because their clients choose the URL. If `listed` is false and `url_hosts` is
        empty, every host with a public address is allowed. If `allow_private` is true, the host may have a private
        address. Raises `InvalidInput` for an invalid URL, `FetchRefused` for a host or an address that is not allowed,
        and `FetchFailed` if the document cannot be loaded."""
        download = self._sources.fetcher.get().get(url, allow_private=allow_private, listed=listed)
        name, origin = name or download.name, Origin(download.url)
        return self.upload(download.data, name=name, origin=origin, progress=progress, **options)

    def sync(
        self,
        folder: str | os.PathLike[str],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        delete: bool = False,
        progress: SyncProgress | None = None,
        seconds: float = math.inf,
    ) -> SyncReport:
        """Make the documents of a folder equal to its files, and return what was done.

        New and changed files are stored, a file that was moved in the folder keeps its chunks and vectors, and the
        documents of files that are gone are removed. A file whose size, time and number (inode) are the same as at the
        last sync is not read. `docs/FOLDERS.md` says which files are left out. With `user_id`, the documents belong to
        this user; a sync without it does not see them. `metadata` is stored with new and changed documents. `progress`
        receives the number of handled files and of all files. After `seconds`, the sync ends with the current file;
        `left` of the result is the number of remaining files, which the next sync handles.

        A file that cannot be read is in `failed` of the result, and the other files are stored. Raises `InvalidInput`
        if the folder is a memory home, or if `delete` is false and the folder or over half of its files are gone.

        >>> [str(path) for path in af.rag.sync("notes").added]
        ['tea.md']
        """
        path = checked_folder(folder)
        if is_home(path):
            raise InvalidInput("folder", _HOME)
        namespace = fields.name("namespace", namespace)
        stored = fields.stored_metadata(metadata) if metadata is not None else None
        user_id = fields.optional_name("user_id", user_id)
        sync = FolderSync(self, path, namespace, stored, self._sources.limits, self._sources.folders.own, user_id)
        documents = all_entries(self._backend, sync.scope)
        return sync.run(documents, delete=delete, progress=progress, seconds=seconds)

    def sync_allowed(self, folder: str, **options: Any) -> SyncReport:
        """Sync a folder for a caller that may choose only folders below the folders of the setting `sync_roots`.
        `options` are those of `sync`. Raises `Forbidden` for another folder, and the errors of `sync`."""
        return self.sync(folder_in_roots(folder, self.sync_roots), **options)

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
        Memories and documents of a user are used only with this `user_id`, besides those of no user; a document that
        `document_id` names is used without it, too. Raises `InvalidInput` for an empty question or an invalid
        filter, and `NotFound` for an unknown document.

        >>> document = af.rag.upload("handbook.txt")
        >>> answer = af.rag.query("When does the sauna open?")
        >>> answer.text
        '“The sauna opens at five.” [1]'
        >>> answer.citations[0].document, answer.citations[0].page
        ('handbook.txt', 1)
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

        >>> document = af.rag.upload("handbook.txt")
        >>> *pieces, answer = af.rag.stream("When does the sauna open?")
        >>> answer.mode
        'extractive'
        """
        return self._questions.stream(question, scope, top_k=top_k, max_tokens=max_tokens)

    def context(self, question: str, *, max_tokens: int | None = None, **scope: Unpack[ChunkFilters]) -> PassageContext:
        """Return the passages that a language model needs to answer a question, best first, with at most `max_tokens`
        tokens together (default: `Settings.answer_context_tokens`). No language model is called.

        `text` of the result can be put into a prompt: it contains the passages with their numbers and sources. Tokens
        are counted as the embedding model counts them. `scope` and the errors are those of `query`.
        """
        return self._questions.context(question, scope, max_tokens=max_tokens)
