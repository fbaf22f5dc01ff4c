"""Stores a corpus in a memory as a user would store it, and finds the passage that a hit belongs to.

Some keys of a passage's `meta` have a meaning. The keys in a line of this list are synonyms: the first key that `meta`
has is used.

- `title`: the title of the passage or of its document
- `aliases`: a list of other names for the passage. Search also finds the passage by these names
- `conversation`, `conv`: the name of a conversation. A question with this key searches only this conversation. A
  question without this key searches only passages that belong to no conversation
- `session`, `session_id`: the session of a message. Messages are in the order of the file
- `speaker`, `role`: the speaker. A passage with a speaker is a message if it also has a conversation or a session
- `date_time`, `date`, `occurred_at`, `timestamp`: the date of the event. The module `dataset` lists the notations
- `language`, `lang`: the ISO 639-1 code of the language. A question may have this key, too

Messages are stored as `add_message` stores them. A passage that is not a message is split into chunks like an uploaded
document if it has more than `chunk_tokens` tokens. The document gets the id of the passage as its name. If search finds
a chunk, the passage counts as found.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from agentformer.embedders.guarded import token_spans
from agentformer.errors import DocumentError, InvalidInput
from agentformer.evaluation.dataset import Dataset, Passage, Question, date_value, parse_moment
from agentformer.memory import validation
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.documents import Document
from agentformer.rag.ingest import IngestPipeline
from agentformer.readers import ReadLimits
from agentformer.readers.formats import ReadOptions
from agentformer.readers.text_and_csv import parse
from agentformer.settings import Settings
from agentformer.types import DEFAULT_NAMESPACE, Embedder, Hit, MemoryBackend, MemoryEntry, Scope, Span

Progress = Callable[[int, int], None]  # receives the number of stored passages, and of all passages

PASSAGE = "passage"  # key of the metadata that holds a passage's id
TITLE = ("title",)
ALIASES = ("aliases",)
CONVERSATION = ("conversation", "conv")
SESSION = ("session", "session_id")
SPEAKER = ("speaker",)
ROLE = ("role",)
LANGUAGE = ("language", "lang")
CATEGORY = ("category_name", "category")

_BATCH = 1_000  # passages of one transaction; an interruption loses at most one batch
_LONGEST_NAME = 160  # code points of a conversation's name; a longer name is replaced by its hash
_MOST_TITLE = 300
_UNDATED = datetime(2000, 1, 1, tzinfo=UTC)  # date of the first message of a session without dates
_STEP = timedelta(milliseconds=1)  # time between the messages of such a session
_LATEST = datetime.max.replace(tzinfo=UTC) - _STEP


@dataclasses.dataclass(frozen=True, slots=True)
class Loader:
    """Stores corpora in a memory. The memory must have no cleaner (`clean_every=0`), because a cleaner replaces
    passages by summaries."""

    backend: MemoryBackend
    memory: MemoryManager
    embedder: Embedder
    settings: Settings  # with the sizes of chunks

    def load(self, dataset: Dataset, progress: Progress | None = None) -> None:
        """Store the passages of a dataset in batches or, if the dataset has documents, store the documents instead.
        Empty passages are skipped. Raises `InvalidInput` with the id of the passage if a passage cannot be stored."""
        for number, (document, text) in enumerate(dataset.documents, 1):
            self.backend.store(self._pipeline.entries(document, text))
            if progress:
                progress(number, len(dataset.documents))
        if dataset.documents:
            return
        passages = [passage for passage in dataset.passages if passage.text.strip()]
        moments = _Moments()
        for start in range(0, len(passages), _BATCH):
            batch = passages[start : start + _BATCH]
            self._store(batch, moments)
            if progress:
                progress(start + len(batch), len(passages))

    def _store(self, passages: Sequence[Passage], moments: _Moments) -> None:
        messages = [passage for passage in passages if is_message(passage)]
        others = [entry for passage in passages if not is_message(passage) for entry in _named(passage, self._entries)]
        if messages:
            try:
                self.memory.add_messages([moments.assign(_message(passage)) for passage in messages])
            except InvalidInput:
                for passage in messages:  # check them one by one, so that the error has the id of the passage
                    _named(passage, lambda passage: [validation.new_message(_message(passage))])
                raise
        if others:
            self.backend.store(others)

    def _entries(self, passage: Passage) -> list[MemoryEntry]:
        """Return the entries of a passage that is no message. A long passage becomes a document and its chunks."""
        meta = passage.meta
        title = text_value(meta, TITLE)[:_MOST_TITLE]
        chunk = self.settings.chunk_tokens
        if len(passage.text) > chunk and len(self._spans(passage.text)) > chunk:
            return self._document(passage, title)
        aliases = value(meta, ALIASES)
        values = {
            "content": passage.text,
            "title": title,
            "metadata": {**_metadata(passage), **({"aliases": aliases} if isinstance(aliases, list) else {})},
            "occurred_at": parse_moment(date_value(meta)),
            "namespace": namespace_of(meta),
        }
        return [validation.new_entry(values)]

    def _document(self, passage: Passage, title: str) -> list[MemoryEntry]:
        data = passage.text.encode()
        namespace, metadata = namespace_of(passage.meta), _metadata(passage)
        digest = hashlib.sha256(data).hexdigest()
        about = Document(passage.id, namespace, "ready", sha256=digest, bytes=len(data), metadata=metadata)
        text = dataclasses.replace(next(parse(data, ReadOptions(about.name, "text/plain"))), title=title)
        return self._pipeline.entries(about, text)

    @property
    def _pipeline(self) -> IngestPipeline:
        sizes = {"chunk_tokens": self.settings.chunk_tokens, "chunk_overlap": self.settings.chunk_overlap}
        return IngestPipeline(self.embedder, **sizes, limits=ReadLimits())

    @property
    def _spans(self) -> Callable[[str], list[Span]]:
        return token_spans(self.embedder)


def passage_of(hit: Hit) -> str:
    """Return the id of the passage that a hit found. The entry of the hit contains the passage or a chunk of it."""
    return str(hit.entry.metadata.get(PASSAGE, hit.entry.id))


def scope_of(question: Question) -> Scope:
    """Return the scope of a question: its conversation, or the passages that belong to no conversation."""
    return Scope(namespace_of(question.meta))


def namespace_of(meta: Mapping[str, Any]) -> str:
    """Return the namespace of the conversation in `meta`, or the default namespace if there is none."""
    conversation = text_value(meta, CONVERSATION)
    if not conversation:
        return DEFAULT_NAMESPACE
    if len(conversation) > _LONGEST_NAME:
        conversation = hashlib.blake2b(conversation.encode(), digest_size=16).hexdigest()
    return f"conversation-{conversation}"


def is_message(passage: Passage) -> bool:
    """Return whether the passage is a message: it has a session, or both a speaker and a conversation."""
    meta = passage.meta
    speaker = text_value(meta, SPEAKER) or text_value(meta, ROLE)
    return bool(text_value(meta, SESSION) or (text_value(meta, CONVERSATION) and speaker))


def value(meta: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first key in `names` that `meta` has, or None if `meta` has none of these keys."""
    return next((meta[name] for name in names if meta.get(name) is not None), None)


def text_value(meta: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return `value(meta, names)` as text. A number is converted to text. For a value of any other type, return ""."""
    item = value(meta, names)
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return str(item)
    return item.strip() if isinstance(item, str) else ""


class _Moments:
    """Assigns dates to messages that have none: the date of the previous message of the session plus one millisecond.
    The first message of a session gets a fixed date, so that every evaluation stores the same dates."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], datetime] = {}

    def assign(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with a date in `occurred_at`."""
        session = message["namespace"], message["session_id"]
        moment = message["occurred_at"] or min(self._last.get(session, _UNDATED), _LATEST) + _STEP
        self._last[session] = moment
        return {**message, "occurred_at": moment}


def _message(passage: Passage) -> dict[str, Any]:
    """Return the arguments with which `add_message` stores a passage."""
    meta = passage.meta
    role = text_value(meta, ROLE)
    is_role = role.lower() in validation.ROLES
    return {
        "session_id": text_value(meta, SESSION) or text_value(meta, CONVERSATION),
        "role": role.lower() if is_role else "user",
        "speaker": text_value(meta, SPEAKER) or ("" if is_role else role),
        "content": passage.text,
        "occurred_at": parse_moment(date_value(meta)),
        "metadata": _metadata(passage),
        "namespace": namespace_of(meta),
    }


def _metadata(passage: Passage) -> dict[str, Any]:
    language = text_value(passage.meta, LANGUAGE)
    return {PASSAGE: passage.id, **({"language": language} if language else {})}


def _named(passage: Passage, make: Callable[[Passage], list[MemoryEntry]]) -> list[MemoryEntry]:
    """Return the entries that `make` makes of a passage. If it fails, raise `InvalidInput` with
    the id of the passage."""
    try:
        return make(passage)
    except (InvalidInput, DocumentError) as error:
        raise InvalidInput("DIR", f"the passage {passage.id!r:.80} cannot be stored: {error}") from None
