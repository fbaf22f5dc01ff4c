"""A corpus is put into a memory as a user would put it there, and told by its passages' ids again.

These keys of a passage's `meta` mean something, the first of each line that is there; all others are left alone:

- `title`: its title, or its document's
- `aliases`: a list of other names that it is found by
- `conversation`, `conv`: the conversation that it belongs to. It is searched apart: a question with the same value
  finds passages of this conversation alone, and a question without finds those of none
- `session`, `session_id`: with a conversation or alone, the session that it is a message of, in the file's order
- `speaker`, `role`: who said it; with either and a conversation or a session, it is a message
- `date_time`, `date`, `occurred_at`, `timestamp`: when it happened; see `moments`
- `language`, `lang`: its language's ISO 639-1 code, of a question too

A message is kept as by `add_message`. Another text of more than `chunk_tokens` tokens is cut as an upload of it would
be, with its id for the document's name; a hit of a chunk counts for its passage.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from agentformer.errors import DocumentError, EmbedderUnavailable, InvalidInput
from agentformer.evaluation.dataset import Dataset, Passage, Question
from agentformer.evaluation.moments import moment_of, stated
from agentformer.memory import validation
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.documents import Document
from agentformer.rag.ingest import document_entries
from agentformer.readers.plain import parse
from agentformer.readers.sandbox.limits import ReadOptions
from agentformer.text.tokens import estimated_spans
from agentformer.types import DEFAULT_NAMESPACE, Embedder, Hit, MemoryBackend, MemoryEntry, Scope, Span

Progress = Callable[[int, int], None]  # passages stored, passages in all

PASSAGE = "passage"  # key of the metadata that holds a passage's id
TITLE = ("title",)
ALIASES = ("aliases",)
CONVERSATION = ("conversation", "conv")
SESSION = ("session", "session_id")
SPEAKER = ("speaker",)
ROLE = ("role",)
LANGUAGE = ("language", "lang")
CATEGORY = ("category_name", "category")

_TOGETHER = 1_000  # passages of one transaction; what a stop can cost
_LONGEST_NAME = 160  # code points of a conversation's name; a longer one goes by its hash
_MOST_TITLE = 300
_UNDATED = datetime(2000, 1, 1, tzinfo=UTC)  # of messages without a date,
_STEP = timedelta(milliseconds=1)  # and how far they are apart
_LATEST = datetime.max.replace(tzinfo=UTC) - _STEP


class Loader:
    """Puts corpora into a memory. Its cleaner should be off (`clean_every=0`): a summary is nobody's passage."""

    def __init__(
        self,
        memory: MemoryManager,
        backend: MemoryBackend,
        embedder: Embedder,
        *,
        chunk_tokens: int,
        chunk_overlap: int,
    ) -> None:
        self._memory = memory
        self._backend = backend
        self._embedder = embedder
        self._chunk_tokens = chunk_tokens
        self._chunk_overlap = chunk_overlap
        self._moment = _Moments()

    def __call__(self, dataset: Dataset, progress: Progress | None = None) -> None:
        """Store every passage that is not empty, many together. Raises `InvalidInput` that names the passage."""
        passages = [passage for passage in dataset.passages if passage.text.strip()]
        done = 0
        self._moment = _Moments()
        for some in _batches(passages, _TOGETHER):
            self._store(some)
            done += len(some)
            if progress:
                progress(done, len(passages))

    def _store(self, passages: Sequence[Passage]) -> None:
        said_ones = [passage for passage in passages if is_message(passage)]
        others = [entry for each in passages if not is_message(each) for entry in _named(each, self._entries)]
        if said_ones:
            try:
                self._memory.add_messages([self._moment(_message(each)) for each in said_ones])
            except InvalidInput:
                for each in said_ones:  # one of them is to be named
                    _named(each, lambda passage: [validation.new_message(_message(passage))])
                raise
        if others:
            self._backend.store(others)

    def _entries(self, passage: Passage) -> list[MemoryEntry]:
        """One entry, or what an upload of a long text makes."""
        if len(passage.text) > self._chunk_tokens and len(self._spans(passage.text)) > self._chunk_tokens:
            return self._document(passage)
        meta = passage.meta
        language = said(meta, LANGUAGE)
        aliases = value(meta, ALIASES)
        metadata = {
            PASSAGE: passage.id,
            **({"language": language} if language else {}),
            **({"aliases": aliases} if isinstance(aliases, list) else {}),
        }
        values = {
            "content": passage.text,
            "title": said(meta, TITLE)[:_MOST_TITLE],
            "metadata": metadata,
            "occurred_at": moment_of(stated(meta)),
            "namespace": namespace_of(meta),
        }
        return [validation.new_entry(values)]

    def _document(self, passage: Passage) -> list[MemoryEntry]:
        title = said(passage.meta, TITLE)[:_MOST_TITLE]
        data = passage.text.encode()
        digest = hashlib.sha256(data).hexdigest()
        language = said(passage.meta, LANGUAGE)
        about = Document(
            passage.id,
            namespace_of(passage.meta),
            "ready",
            sha256=digest,
            bytes=len(data),
            metadata={PASSAGE: passage.id, **({"language": language} if language else {})},
        )
        text = dataclasses.replace(next(parse(data, ReadOptions(about.name, "text/plain"))), title=title)
        return document_entries(about, text, self._spans, self._chunk_tokens, self._chunk_overlap)

    def _spans(self, text: str) -> list[Span]:
        try:
            return self._embedder.token_spans(text)
        except EmbedderUnavailable:
            return estimated_spans(text)


def passage_of(hit: Hit) -> str:
    """The id of the passage that a hit is, or is a chunk of."""
    return str(hit.entry.metadata.get(PASSAGE, hit.entry.id))


def scope_of(question: Question) -> Scope:
    """Where a question is asked: in its conversation, or outside of all."""
    return Scope(namespace_of(question.meta))


def namespace_of(meta: Mapping[str, Any]) -> str:
    conversation = said(meta, CONVERSATION)
    if not conversation:
        return DEFAULT_NAMESPACE
    if len(conversation) > _LONGEST_NAME:
        conversation = hashlib.blake2b(conversation.encode(), digest_size=16).hexdigest()
    return f"conversation-{conversation}"


def is_message(passage: Passage) -> bool:
    """Does a speaker say it in a conversation, or is it of a session?"""
    meta = passage.meta
    return bool(said(meta, SESSION) or (said(meta, CONVERSATION) and (said(meta, SPEAKER) or said(meta, ROLE))))


def value(meta: Mapping[str, Any], names: Sequence[str]) -> Any:
    """What the first of these keys holds that is there."""
    return next((meta[name] for name in names if meta.get(name) is not None), None)


def said(meta: Mapping[str, Any], names: Sequence[str]) -> str:
    """The same as text: a number is one, too; "" for what is none."""
    found = value(meta, names)
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        return str(found)
    return found.strip() if isinstance(found, str) else ""


class _Moments:
    """When messages were said: those without a date right after the one before them in their session, and its first
    ones on a day that is always the same, so that each evaluation is like the one before."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], datetime] = {}

    def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message, with its moment."""
        session = message["namespace"], message["session_id"]
        moment = message["occurred_at"] or min(self._last.get(session, _UNDATED), _LATEST) + _STEP
        self._last[session] = moment
        return {**message, "occurred_at": moment}


def _message(passage: Passage) -> dict[str, Any]:
    """`add_message`'s arguments."""
    meta = passage.meta
    role = said(meta, ROLE)
    known = role.lower() in validation.ROLES
    language = said(meta, LANGUAGE)
    return {
        "session_id": said(meta, SESSION) or said(meta, CONVERSATION),
        "role": role.lower() if known else "user",
        "speaker": said(meta, SPEAKER) or ("" if known else role),
        "content": passage.text,
        "occurred_at": moment_of(stated(meta)),
        "metadata": {PASSAGE: passage.id, **({"language": language} if language else {})},
        "namespace": namespace_of(meta),
    }


def _named(passage: Passage, make: Callable[[Passage], list[MemoryEntry]]) -> list[MemoryEntry]:
    """Raises `InvalidInput` that tells which passage cannot be stored."""
    try:
        return make(passage)
    except (InvalidInput, DocumentError) as error:
        raise InvalidInput("DIR", f"the passage {passage.id!r:.80} cannot be stored: {error}") from None


def _batches(passages: Sequence[Passage], size: int) -> Iterator[list[Passage]]:
    rows = iter(passages)
    while some := list(islice(rows, size)):
        yield some
