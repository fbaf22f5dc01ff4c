"""`RAGTool`: documents in, answers with page-exact citations out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from agentformer.errors import InvalidInput, NotFound
from agentformer.memory.usage import UsageCounter
from agentformer.rag.documents import Document, Originals, document_of
from agentformer.rag.keyed_lock import KeyedLock
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

_WAITING = "no embedder was at hand: found by words, and by vectors after `agentformer reindex`"
_PAGE = 500  # entries listed at a time
_MAX_NAME = 255  # code points; the limit of common file systems
_MOST_TOKENS = 4096  # that one question may let a model write


class _Clock:
    """When one question was asked, what was found, and the first piece of a streamed answer came."""

    def __init__(self) -> None:
        self.asked = self.found = time.perf_counter()
        self.first = 0.0  # of no stream

    def timings(self) -> dict[str, float]:
        """Milliseconds until now."""
        done = time.perf_counter()
        spans = {
            "search_ms": self.found - self.asked,
            "answer_ms": done - self.found,
            "total_ms": done - self.asked,
            **({"first_token_ms": self.first - self.asked} if self.first else {}),
        }
        return {name: round(seconds * 1000, 2) for name, seconds in spans.items()}


class RAGTool:
    """Uploads documents and answers from them. Thread-safe as its backend is. `ingest` and `answerer` build their
    part at the first call and return it at each: listing documents needs neither."""

    def __init__(
        self,
        backend: MemoryBackend,
        ingest: Callable[[], IngestPipeline],
        answerer: Callable[[], Answerer],
        originals: Originals,
        usage: UsageCounter,
        *,
        top_k: int = 3,
        max_file_bytes: int = 256 * 1024 * 1024,
        max_question_chars: int = 8_000,
    ) -> None:
        self._backend = backend
        self._ingest = ingest
        self._answerer = answerer
        self._originals = originals
        self._usage = usage
        self._top_k = top_k
        self._max_file_bytes = max_file_bytes
        self._max_question_chars = max_question_chars
        self._uploads = KeyedLock()

    def reingest(self, document: MemoryEntry) -> Document:
        """Bring a stored document in again from its original, with its name and metadata: the new one takes its place,
        with ids of its own. Raises `NotFound` where the original is gone."""
        about = document_of(document)
        data = self._originals.get(about.sha256)
        with self._uploads.hold((about.namespace, about.sha256)):
            return self._ingest().run(
                data, about.name, namespace=about.namespace, sha256=about.sha256, metadata=about.metadata
            )

    def ready(self) -> None:
        """Make all parts now, and raise what making them raises."""
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
        """Bring a document in: a path, its bytes, or an open binary file.

        `name` may have folders before it; without one, it is the file's own. The same bytes twice are one
        document (`unchanged`), which keeps its first name and metadata; an original that was lost is put back. The same
        name with other bytes replaces the former version in one step, when the new one is complete. What is wrong with
        the content is told by the document's `status` and `reason`; `InvalidInput` is raised for a path that is no
        readable file.
        """
        namespace = fields.name("namespace", namespace)
        metadata = fields.metadata(metadata)
        data, found_name = self._bytes(file)
        name = _safe_name(name or found_name)
        digest = hashlib.sha256(data).hexdigest()
        with self._uploads.hold((namespace, digest)):  # who brings the same at the same moment finds it `unchanged`
            if same := self._same_bytes(namespace, digest):
                if self._backend.pending(Scope(namespace, document_id=same.id)):
                    self._backend.embed_pending()
                self._originals.restore(data)
                self._usage.count_gets([same.id])
                return dataclasses.replace(self._with_state(same), unchanged=True)
            document = self._ingest().run(
                data,
                name,
                namespace=namespace,
                sha256=digest,
                metadata=metadata,
                password=password,
                progress=progress,
            )
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
        """An answer from the best `top_k` chunks, with citations, hits, warnings and timings.

        `filters` is equality over metadata given at upload; `max_tokens` bounds what a model writes, 1..4096. With
        `extractive` no model is asked: the answer is quotes. Raises `InvalidInput` for an empty question.
        """
        limit = _tokens(max_tokens)
        clock = _Clock()
        hits = self._found(question, top_k, namespace, filters)
        clock.found = time.perf_counter()
        answer = self._answerer().answer(question, hits, max_tokens=limit, extractive=extractive)
        return self._told(answer, hits, clock)

    def stream(
        self,
        question: str,
        *,
        top_k: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        filters: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Generator[AnswerEvent, None, None]:
        """The answer of `query` as it is spoken: pieces, and last the one `Answer`, whose timings have
        `first_token_ms` too. A model that breaks off has an `AnswerFault` before it.

        What `query` raises is raised at once, not with the first event. Closing the generator stops the model.
        """
        limit = _tokens(max_tokens)
        clock = _Clock()
        hits = self._found(question, top_k, namespace, filters)
        clock.found = time.perf_counter()
        return self._spoken(question, hits, limit, clock)

    def documents(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Document]:
        """Every document of the namespace, oldest first. `pending` ones are found by words already."""
        scope = Scope(fields.name("namespace", namespace), kinds=("document",))
        return [self._with_state(document_of(entry)) for entry in self._all(scope)]

    def page_of_documents(
        self, *, namespace: str = DEFAULT_NAMESPACE, after: str = "", limit: int = 100
    ) -> list[Document]:
        """At most `limit` documents of the namespace, oldest first, behind the one with the id `after`."""
        scope = Scope(fields.name("namespace", namespace), kinds=("document",))
        after = fields.text("after", after, fields.MAX_NAME)
        found = self._backend.list(scope, after=after, limit=fields.limit("limit", limit))
        return [self._with_state(document_of(entry)) for entry in found]

    def document(self, document_id: str, *, namespace: str | None = None) -> Document:
        """The document of this id. Raises `NotFound`."""
        return self._with_state(document_of(self._document(document_id, namespace)))

    def original(self, document_id: str, *, namespace: str | None = None) -> bytes:
        """The bytes that were uploaded. Raises `NotFound`."""
        return self._originals.get(self._document(document_id, namespace).metadata["sha256"])

    def chunks(
        self, document_id: str, *, namespace: str | None = None, after: str = "", limit: int = 100
    ) -> list[MemoryEntry]:
        """At most `limit` chunks of a document in their order, behind the one with the id `after`. Raises
        `NotFound`."""
        entry = self._document(document_id, namespace)
        scope = Scope(entry.namespace, kinds=("chunk",), document_id=document_id)
        after = fields.text("after", after, fields.MAX_NAME)
        return [*self._backend.list(scope, after=after, limit=fields.limit("limit", limit))]

    def remove(self, document_id: str, *, namespace: str | None = None) -> None:
        """Delete a document with everything made from it, and its original. Raises `NotFound`."""
        entry = self._document(document_id, namespace)
        self._backend.remove([document_id])
        self._originals.discard(entry.metadata["sha256"], self._ingest().in_use)

    def discard_originals(self, digests: Iterable[str]) -> None:
        """Delete the originals of documents that were forgotten with a whole scope, unless another has the same."""
        for digest in digests:
            self._originals.discard(digest, self._ingest().in_use)

    def pages(self, document_id: str, *, namespace: str | None = None) -> list[Page]:
        """The stored text of each page; citations' offsets refer to it. Raises `NotFound`."""
        entry = self._document(document_id, namespace)
        return [_page(e) for e in self._all(Scope(entry.namespace, kinds=("page",), document_id=document_id))]

    def _found(self, question: str, top_k: int | None, namespace: str, filters: Mapping[str, Any] | None) -> Hits:
        """The chunks to answer from, counted as matched."""
        self._check_question(question)
        limit = fields.limit("top_k", self._top_k if top_k is None else top_k)
        chunks = Scope(
            fields.name("namespace", namespace), kinds=("chunk",), metadata=fields.metadata(filters, "filters")
        )
        hits = self._backend.search(Query(question, chunks, limit))
        self._usage.count_matches(hit.entry.id for hit in hits)
        return hits

    def _spoken(
        self, question: str, hits: Hits, max_tokens: int | None, clock: _Clock
    ) -> Generator[AnswerEvent, None, None]:
        with closing(self._answerer().stream(question, hits, max_tokens=max_tokens)) as events:
            for event in events:
                clock.first = clock.first or time.perf_counter()
                yield self._told(event, hits, clock) if isinstance(event, Answer) else event

    def _told(self, answer: Answer, hits: Hits, clock: _Clock) -> Answer:
        """The answer with all that this call knows; what a model was given counts as read."""
        if answer.mode == "llm":
            self._usage.count_reads(hit.entry.id for hit in hits)
        warnings = (*hits.warnings, *answer.warnings)
        return dataclasses.replace(answer, hits=tuple(hits), warnings=warnings, timings=clock.timings())

    def _document(self, document_id: str, namespace: str | None) -> MemoryEntry:
        found = self._backend.get([document_id])
        if not found or found[0].kind != "document" or namespace not in (None, found[0].namespace):
            where = f" in namespace {namespace}" if namespace else ""
            raise NotFound(f"there is no document {document_id}{where}; `agentformer list` shows those that are there")
        return found[0]

    def _bytes(self, file: str | os.PathLike[str] | bytes | BinaryIO) -> tuple[bytes, str]:
        if isinstance(file, (bytes, bytearray, memoryview)):
            return self._limited(bytes(file)), ""
        if isinstance(file, (str, os.PathLike)):
            return self._limited(_read_path(Path(file), self._max_file_bytes)), Path(file).name
        try:
            data: Any = file.read(self._max_file_bytes + 1)
        except (AttributeError, UnicodeDecodeError):
            data = None
        if not isinstance(data, bytes):
            raise InvalidInput("file", "must be a path, bytes, or a file opened in binary mode ('rb')")
        given = getattr(file, "name", "")
        return self._limited(data), Path(given).name if isinstance(given, str) else ""

    def _limited(self, data: bytes) -> bytes:
        _check_size(len(data), self._max_file_bytes)
        return data

    def _check_question(self, question: str) -> None:
        if not isinstance(question, str):
            raise InvalidInput("question", f"must be text, got {type(question).__name__}")
        if not question.strip():
            raise InvalidInput("question", "is empty; ask something")
        if len(question) > self._max_question_chars:
            raise InvalidInput("question", f"has {len(question)} characters, over {self._max_question_chars}")
        fields.encodable("question", question)

    def _same_bytes(self, namespace: str, digest: str) -> Document | None:
        scope = Scope(namespace, kinds=("document",), metadata={"sha256": digest})
        found = self._backend.list(scope, limit=1)
        return document_of(found[0]) if found and found[0].metadata["status"] == "ready" else None

    def _with_state(self, document: Document) -> Document:
        """`pending` while a part of it waits for the embedder."""
        if document.status != "ready" or not self._backend.pending(Scope(document.namespace, document_id=document.id)):
            return document
        return dataclasses.replace(document, status="pending", reason=_WAITING)

    def _all(self, scope: Scope) -> Iterator[MemoryEntry]:
        after = ""
        while group := self._backend.list(scope, after=after, limit=_PAGE):
            yield from group
            after = group[-1].id


def _tokens(value: Any) -> int | None:
    """A bound of tokens as a caller gives it; None where the settings decide. Raises `InvalidInput`."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_TOKENS):
        return value
    raise InvalidInput("max_tokens", f"must be a whole number in 1..{_MOST_TOKENS}, got {value!r:.80}")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidInput("file", f"has over {limit} bytes; raise max_file_bytes or split it")


def _read_path(path: Path, limit: int) -> bytes:
    try:
        if path.is_dir():
            raise InvalidInput("file", f"{path} is a folder; give its files (`agentformer ingest` takes folders)")
        if path.exists() and not path.is_file():
            raise InvalidInput("file", f"{path} is a device or a pipe; give a regular file")
        with path.open("rb") as file:
            _check_size(os.fstat(file.fileno()).st_size, limit)  # before anything of it is read
            return file.read(limit + 1)
    except FileNotFoundError:
        raise InvalidInput("file", f"{path} does not exist") from None
    except PermissionError:
        raise InvalidInput("file", f"{path} may not be read; check its permissions") from None
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput("file", f"{str(path)[:200]!r} cannot be read: {error}") from None


def _safe_name(name: str) -> str:
    """A name as an uploader gave it, without what could hurt a terminal. It is never a path of ours."""
    if not isinstance(name, str):
        raise InvalidInput("name", f"must be a string, got {type(name).__name__}")
    printable = "".join(ch for ch in name.replace("\\", "/") if ch.isprintable()).encode("utf-8", "ignore").decode()
    parts = [part.strip() for part in printable.split("/") if part.strip() not in ("", ".", "..")]
    if not parts:
        raise InvalidInput("name", "give the document a name, such as report.pdf")
    return "/".join(parts)[-_MAX_NAME:]


def _page(entry: MemoryEntry) -> Page:
    source = entry.source
    return Page(
        number=(source.page or 0) if source else 0,
        text=entry.content,
        label=source.label if source else "",
        status=entry.metadata["status"],
        reason=entry.metadata["reason"],
        method=entry.metadata["method"],
    )
