"""`RAGTool`: uploads documents and answers questions from them with page-exact citations."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from agentformer.errors import InvalidInput, NotFound
from agentformer.memory.backends import all_entries
from agentformer.memory.usage import UsageCounter
from agentformer.rag.documents import Document, KeyedLock, Originals, document_of
from agentformer.records import fields
from agentformer.types import (
    DEFAULT_NAMESPACE,
    Answer,
    AnswerEvent,
    Hits,
    MemoryBackend,
    MemoryEntry,
    Page,
    Query,
    Scope,
)

if TYPE_CHECKING:
    from agentformer.rag.answer.answerer import Answerer
    from agentformer.rag.ingest import IngestPipeline, Progress

_PENDING = "the embedder was unavailable: found by words now, and by vectors after `agentformer reindex`"
_MAX_NAME = 255  # code points of a name; the limit of common file systems
_MAX_TOKENS = 4096  # of an answer


@dataclasses.dataclass(frozen=True, slots=True)
class RAGLimits:
    """`top_k` is the default number of chunks to answer from."""

    top_k: int = 3
    max_file_bytes: int = 256 * 1024 * 1024
    max_question_chars: int = 8_000


class _Stopwatch:
    """The times of one question: its start, the end of the search, and the first piece of a streamed answer."""

    def __init__(self) -> None:
        self.started = self.searched = time.perf_counter()
        self.first_token = 0.0  # without a stream

    def timings(self) -> dict[str, float]:
        """Return the milliseconds of each step until now."""
        now = time.perf_counter()
        spans = {
            "search_ms": self.searched - self.started,
            "answer_ms": now - self.searched,
            "total_ms": now - self.started,
            **({"first_token_ms": self.first_token - self.started} if self.first_token else {}),
        }
        return {name: round(seconds * 1000, 2) for name, seconds in spans.items()}


class RAGTool:
    """Uploads documents and answers from them. As thread-safe as its backend.

    `ingest` and `answerer` are functions that build their part at the first call. Listing documents needs none of these
    parts.
    """

    def __init__(
        self,
        backend: MemoryBackend,
        ingest: Callable[[], IngestPipeline],
        answerer: Callable[[], Answerer],
        originals: Originals,
        usage: UsageCounter,
        limits: RAGLimits,
    ) -> None:
        self._backend = backend
        self._ingest = ingest
        self._answerer = answerer
        self._originals = originals
        self._usage = usage
        self._limits = limits
        self._uploads = KeyedLock()

    def reingest(self, document: MemoryEntry) -> Document:
        """Ingest a stored document again from its original. The new version has new ids and replaces the document.
        Raises `NotFound` if the original is missing."""
        known = document_of(document)
        data, namespace, digest = self._originals.get(known.sha256), known.namespace, known.sha256
        with self._uploads.hold((namespace, digest)):
            return self._ingest().run(data, known.name, namespace=namespace, sha256=digest, metadata=known.metadata)

    def ready(self) -> None:
        """Build all parts now. Raises the errors of building."""
        self._ingest()
        self._answerer()

    def upload(
        self,
        file: str | os.PathLike[str] | bytes | BinaryIO,
        *,
        name: str = "",
        namespace: str = DEFAULT_NAMESPACE,
        metadata: Mapping[str, Any] | None = None,
        password: str | None = None,
        progress: Progress | None = None,
    ) -> Document:
        """Ingest a document. The document is a path, the bytes, or an open binary file.

        `name` may begin with folders. Its default is the name of the file. If the same bytes are stored already, no new
        document is stored, and the result has `unchanged`. The stored document keeps its first name and metadata; if
        its original is missing, the original is stored again. If a document of the same name has other bytes, the new
        document replaces it in one step. Problems of the content are reported in the `status` and `reason` of the
        document. Raises `InvalidInput` for a path that is not a readable file.
        """
        namespace = fields.name("namespace", namespace)
        metadata = fields.metadata(metadata)
        data, file_name = _read(file, self._limits.max_file_bytes)
        name = _safe_name(name or file_name)
        digest = hashlib.sha256(data).hexdigest()
        about: dict[str, Any] = {"namespace": namespace, "sha256": digest, "metadata": metadata}
        with self._uploads.hold((namespace, digest)):  # concurrent uploads of the same bytes report `unchanged`
            if same := self._document_of_bytes(namespace, digest):
                if self._backend.pending(Scope(namespace, document_id=same.id)):
                    self._backend.embed_pending()
                self._originals.restore(data)
                self._usage.count([same.id], others=1)
                return dataclasses.replace(self._with_state(same), unchanged=True)
            document = self._ingest().run(data, name, **about, password=password, progress=progress)
        return self._with_state(document)

    def query(
        self,
        question: str,
        *,
        top_k: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        filters: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        extractive: bool = False,
    ) -> Answer:
        """Answer from the best `top_k` chunks. The answer has citations, hits, warnings and timings.

        `filters` selects documents by equality of metadata that were given at upload. `max_tokens` (1..4096) limits the
        answer of a model. With `extractive`, no model is called, and the answer consists of quotes. Raises
        `InvalidInput` for an empty question.
        """
        max_tokens = _checked_tokens(max_tokens)
        hits, stopwatch = self._search(question, top_k, namespace, filters)
        answer = self._answerer().answer(question, hits, max_tokens=max_tokens, extractive=extractive)
        return self._completed(answer, hits, stopwatch)

    def stream(
        self,
        question: str,
        *,
        top_k: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        filters: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Generator[AnswerEvent, None, None]:
        """Yield the answer of `query` in pieces, and at the end the complete `Answer`. Its timings include
        `first_token_ms`. If the model stops with an error, an `AnswerFault` is yielded before the `Answer`.

        The errors of `query` are raised by this call, not by the first event. Closing the generator stops the model.
        """
        max_tokens = _checked_tokens(max_tokens)
        hits, stopwatch = self._search(question, top_k, namespace, filters)
        return self._events(question, hits, max_tokens, stopwatch)

    def documents(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Document]:
        """Return every document of the namespace, oldest first. A search by words already finds documents with the
        status `pending`."""
        scope = Scope(fields.name("namespace", namespace), kinds=("document",))
        return [self._with_state(document_of(entry)) for entry in all_entries(self._backend, scope)]

    def page_of_documents(
        self, *, namespace: str = DEFAULT_NAMESPACE, after: str = "", limit: int = 100
    ) -> list[Document]:
        """Return at most `limit` documents of the namespace, oldest first, after the document id `after`."""
        scope = Scope(fields.name("namespace", namespace), kinds=("document",))
        return [self._with_state(document_of(entry)) for entry in self._page(scope, after, limit)]

    def document(self, document_id: str, *, namespace: str | None = None) -> Document:
        """Return the document of this id. Raises `NotFound`."""
        return self._with_state(document_of(self._document(document_id, namespace)))

    def original(self, document_id: str, *, namespace: str | None = None) -> bytes:
        """Return the uploaded bytes. Raises `NotFound`."""
        return self._originals.get(self._document(document_id, namespace).metadata["sha256"])

    def chunks(
        self, document_id: str, *, namespace: str | None = None, after: str = "", limit: int = 100
    ) -> list[MemoryEntry]:
        """Return at most `limit` chunks of a document in order, after the chunk id `after`. Raises `NotFound`."""
        entry = self._document(document_id, namespace)
        return self._page(Scope(entry.namespace, kinds=("chunk",), document_id=document_id), after, limit)

    def pages(self, document_id: str, *, namespace: str | None = None) -> list[Page]:
        """Return the stored text of each page. The offsets of citations refer to this text. Raises `NotFound`."""
        entry = self._document(document_id, namespace)
        scope = Scope(entry.namespace, kinds=("page",), document_id=document_id)
        return [_page_of(page) for page in all_entries(self._backend, scope)]

    def remove(self, document_id: str, *, namespace: str | None = None) -> None:
        """Delete a document, everything that was made from it, and its original. Raises `NotFound`."""
        entry = self._document(document_id, namespace)
        self._backend.remove([document_id])
        self.discard_originals([entry.metadata["sha256"]])

    def discard_originals(self, digests: Iterable[str]) -> None:
        """Delete the originals of removed documents, unless another document has the same bytes."""
        for digest in digests:
            self._originals.discard(digest, self._ingest().in_use)

    def _search(
        self, question: str, top_k: int | None, namespace: str, filters: Mapping[str, Any] | None
    ) -> tuple[Hits, _Stopwatch]:
        stopwatch = _Stopwatch()
        _check_question(question, self._limits.max_question_chars)
        limit = fields.limit("top_k", self._limits.top_k if top_k is None else top_k)
        metadata = fields.metadata(filters, "filters")
        chunks = Scope(fields.name("namespace", namespace), kinds=("chunk",), metadata=metadata)
        hits = self._backend.search(Query(question, chunks, limit))
        self._usage.count((hit.entry.id for hit in hits), matches=1)
        stopwatch.searched = time.perf_counter()
        return hits, stopwatch

    def _events(
        self, question: str, hits: Hits, max_tokens: int | None, stopwatch: _Stopwatch
    ) -> Generator[AnswerEvent, None, None]:
        with closing(self._answerer().stream(question, hits, max_tokens=max_tokens)) as events:
            for event in events:
                stopwatch.first_token = stopwatch.first_token or time.perf_counter()
                yield self._completed(event, hits, stopwatch) if isinstance(event, Answer) else event

    def _completed(self, answer: Answer, hits: Hits, stopwatch: _Stopwatch) -> Answer:
        """Add hits, warnings and timings to the answer. Hits that a model read are counted as read."""
        if answer.mode == "llm":
            self._usage.count((hit.entry.id for hit in hits), reads=1)
        warnings = (*hits.warnings, *answer.warnings)
        return dataclasses.replace(answer, hits=tuple(hits), warnings=warnings, timings=stopwatch.timings())

    def _document(self, document_id: str, namespace: str | None) -> MemoryEntry:
        entries = self._backend.get([document_id])
        if not entries or entries[0].kind != "document" or namespace not in (None, entries[0].namespace):
            place = f" in namespace {namespace}" if namespace else ""
            raise NotFound(f"there is no document {document_id}{place}; `agentformer list` shows the documents")
        return entries[0]

    def _document_of_bytes(self, namespace: str, digest: str) -> Document | None:
        """Return the ready document that was made from these bytes."""
        scope = Scope(namespace, kinds=("document",), metadata={"sha256": digest})
        entries = self._backend.list(scope, limit=1)
        return document_of(entries[0]) if entries and entries[0].metadata["status"] == "ready" else None

    def _with_state(self, document: Document) -> Document:
        """Return the document with the status `pending` if a part of it still waits for the embedder."""
        if document.status != "ready" or not self._backend.pending(Scope(document.namespace, document_id=document.id)):
            return document
        return dataclasses.replace(document, status="pending", reason=_PENDING)

    def _page(self, scope: Scope, after: str, limit: int) -> list[MemoryEntry]:
        after = fields.text("after", after, fields.MAX_NAME)
        return [*self._backend.list(scope, after=after, limit=fields.limit("limit", limit))]


def _checked_tokens(value: Any) -> int | None:
    """Return the caller's token limit, or None if the settings decide. Raises `InvalidInput`."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_TOKENS):
        return value
    raise InvalidInput("max_tokens", f"must be a whole number in 1..{_MAX_TOKENS}, got {value!r:.80}")


def _check_question(question: Any, max_chars: int) -> None:
    if not isinstance(question, str):
        raise InvalidInput("question", f"must be text, got {type(question).__name__}")
    if not question.strip():
        raise InvalidInput("question", "is empty; enter a question")
    if len(question) > max_chars:
        raise InvalidInput("question", f"has {len(question)} characters, over {max_chars}")
    fields.encodable("question", question)


def _read(file: Any, limit: int) -> tuple[bytes, str]:
    """Return the bytes and the name of an uploaded file. Raises `InvalidInput`, for example if the file has more than
    `limit` bytes."""
    data: bytes | None
    if isinstance(file, (bytes, bytearray, memoryview)):
        data, name = bytes(file), ""
    elif isinstance(file, (str, os.PathLike)):
        data, name = _read_path(Path(file), limit), Path(file).name
    else:
        try:
            data = file.read(limit + 1)
        except (AttributeError, UnicodeDecodeError):
            data = None
        label = getattr(file, "name", "")
        name = Path(label).name if isinstance(label, str) else ""
    if not isinstance(data, bytes):
        raise InvalidInput("file", "must be a path, bytes, or a file opened in binary mode ('rb')")
    _check_size(len(data), limit)
    return data, name


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidInput("file", f"has over {limit} bytes; raise max_file_bytes, or split the file")


def _read_path(path: Path, limit: int) -> bytes:
    try:
        if path.is_dir():
            raise InvalidInput("file", f"{path} is a folder; give its files (`agentformer ingest` takes folders)")
        if path.exists() and not path.is_file():
            raise InvalidInput("file", f"{path} is a device or a pipe; give a regular file")
        with path.open("rb") as file:
            _check_size(os.fstat(file.fileno()).st_size, limit)  # before the file is read
            return file.read(limit + 1)
    except FileNotFoundError:
        raise InvalidInput("file", f"{path} does not exist") from None
    except PermissionError:
        raise InvalidInput("file", f"{path} cannot be read: permission denied") from None
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput("file", f"{str(path)[:200]!r} cannot be read: {error}") from None


def _safe_name(name: Any) -> str:
    """Return the name without unprintable characters. The name is never used as a path."""
    if not isinstance(name, str):
        raise InvalidInput("name", f"must be a string, got {type(name).__name__}")
    printable = "".join(ch for ch in name.replace("\\", "/") if ch.isprintable()).encode("utf-8", "ignore").decode()
    parts = [part.strip() for part in printable.split("/") if part.strip() not in ("", ".", "..")]
    if not parts:
        raise InvalidInput("name", "give the document a name, such as report.pdf")
    return "/".join(parts)[-_MAX_NAME:]


def _page_of(entry: MemoryEntry) -> Page:
    number, label = (entry.source.page or 0, entry.source.label) if entry.source else (0, "")
    state = {name: entry.metadata[name] for name in ("status", "reason", "method")}
    return Page(number=number, text=entry.content, label=label, **state)
