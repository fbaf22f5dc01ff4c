"""Load a corpus into a memory as a user would store it, and map hits back to passage ids.

These keys of a passage's `meta` have a meaning; of several keys in a line, the first one present counts:

- `title`: its title, or its document's
- `aliases`: a list of other names by which it is found
- `conversation`, `conv`: its conversation. Conversations are searched separately: a question with the same value finds
  only passages of this conversation, and a question without finds only passages without
- `session`, `session_id`: the session of a message, in the order of the file
- `speaker`, `role`: the speaker; a passage with either and a conversation or a session is a message
- `date_time`, `date`, `occurred_at`, `timestamp`: when it happened; see `dataset`
- `language`, `lang`: the ISO 639-1 code of its language; also of a question

Messages are stored as by `add_message`. Other texts of more than `chunk_tokens` tokens are split like an upload, with
their id as document name; a hit of a chunk counts for its passage.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from agentformer.errors import DocumentError, EmbedderUnavailable, InvalidInput
from agentformer.evaluation.dataset import Dataset, Passage, Question, date_value, parse_moment
from agentformer.memory import validation
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.documents import Document
from agentformer.rag.ingest import document_entries
from agentformer.readers.adapters import ReadOptions
from agentformer.readers.plain import parse
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
    """Loads corpora into a memory. Its cleaner should be off (`clean_every=0`), because a summary is not a passage."""

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

    def load(self, dataset: Dataset, progress: Progress | None = None) -> None:
        """Store every passage that is not empty, in batches. Raises `InvalidInput`, which names the passage."""
        passages = [passage for passage in dataset.passages if passage.text.strip()]
        done = 0
        self._moment = _Moments()
        for some in _batches(passages, _TOGETHER):
            self._store(some)
            done += len(some)
            if progress:
                progress(done, len(passages))

    def _store(self, passages: Sequence[Passage]) -> None:
        messages = [passage for passage in passages if is_message(passage)]
        others = [entry for passage in passages if not is_message(passage) for entry in _named(passage, self._entries)]
        if messages:
            try:
                self._memory.add_messages([self._moment.assign(_message(passage)) for passage in messages])
            except InvalidInput:
                for passage in messages:  # one of them is to be named
                    _named(passage, lambda passage: [validation.new_message(_message(passage))])
                raise
        if others:
            self._backend.store(others)

    def _entries(self, passage: Passage) -> list[MemoryEntry]:
        """Return one entry, or the entries that an upload of a long text makes."""
        if len(passage.text) > self._chunk_tokens and len(self._spans(passage.text)) > self._chunk_tokens:
            return self._document(passage)
        meta = passage.meta
        language = text_value(meta, LANGUAGE)
        aliases = value(meta, ALIASES)
        metadata = {
            PASSAGE: passage.id,
            **({"language": language} if language else {}),
            **({"aliases": aliases} if isinstance(aliases, list) else {}),
        }
        values = {
            "content": passage.text,
            "title": text_value(meta, TITLE)[:_MOST_TITLE],
            "metadata": metadata,
            "occurred_at": parse_moment(date_value(meta)),
            "namespace": namespace_of(meta),
        }
        return [validation.new_entry(values)]

    def _document(self, passage: Passage) -> list[MemoryEntry]:
        title = text_value(passage.meta, TITLE)[:_MOST_TITLE]
        data = passage.text.encode()
        digest = hashlib.sha256(data).hexdigest()
        language = text_value(passage.meta, LANGUAGE)
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
    """Return the id of the passage of a hit, also of a chunk."""
    return str(hit.entry.metadata.get(PASSAGE, hit.entry.id))


def scope_of(question: Question) -> Scope:
    """Return the scope of a question: its conversation, or everything outside of conversations."""
    return Scope(namespace_of(question.meta))


def namespace_of(meta: Mapping[str, Any]) -> str:
    """Return the namespace of a conversation, or the default one."""
    conversation = text_value(meta, CONVERSATION)
    if not conversation:
        return DEFAULT_NAMESPACE
    if len(conversation) > _LONGEST_NAME:
        conversation = hashlib.blake2b(conversation.encode(), digest_size=16).hexdigest()
    return f"conversation-{conversation}"


def is_message(passage: Passage) -> bool:
    """Return whether the passage has a speaker in a conversation, or belongs to a session."""
    meta = passage.meta
    return bool(
        text_value(meta, SESSION)
        or (text_value(meta, CONVERSATION) and (text_value(meta, SPEAKER) or text_value(meta, ROLE)))
    )


def value(meta: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of these keys that is present."""
    return next((meta[name] for name in names if meta.get(name) is not None), None)


def text_value(meta: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the same as text, also for a number; "" otherwise."""
    item = value(meta, names)
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return str(item)
    return item.strip() if isinstance(item, str) else ""


class _Moments:
    """Assigns moments to messages without a date: right after the previous one of their session. The first ones get a
    fixed day, so that evaluations are reproducible."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], datetime] = {}

    def assign(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with its moment."""
        session = message["namespace"], message["session_id"]
        moment = message["occurred_at"] or min(self._last.get(session, _UNDATED), _LATEST) + _STEP
        self._last[session] = moment
        return {**message, "occurred_at": moment}


def _message(passage: Passage) -> dict[str, Any]:
    """Return the arguments of `add_message`."""
    meta = passage.meta
    role = text_value(meta, ROLE)
    is_role = role.lower() in validation.ROLES
    language = text_value(meta, LANGUAGE)
    return {
        "session_id": text_value(meta, SESSION) or text_value(meta, CONVERSATION),
        "role": role.lower() if is_role else "user",
        "speaker": text_value(meta, SPEAKER) or ("" if is_role else role),
        "content": passage.text,
        "occurred_at": parse_moment(date_value(meta)),
        "metadata": {PASSAGE: passage.id, **({"language": language} if language else {})},
        "namespace": namespace_of(meta),
    }


def _named(passage: Passage, make: Callable[[Passage], list[MemoryEntry]]) -> list[MemoryEntry]:
    """Call `make` and raise `InvalidInput` with the passage that cannot be stored."""
    try:
        return make(passage)
    except (InvalidInput, DocumentError) as error:
        raise InvalidInput("DIR", f"the passage {passage.id!r:.80} cannot be stored: {error}") from None


def _batches(passages: Sequence[Passage], size: int) -> Iterator[list[Passage]]:
    rows = iter(passages)
    while some := list(islice(rows, size)):
        yield some
