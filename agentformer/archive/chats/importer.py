"""Stores the conversations of a chat export or of an agent as sessions, and the facts of another memory, each once
(docs/MIGRATING.md).

A message is recognised by its `source_type`, such as `chatgpt` or `codex`, and its `source_id`, which contains the ids
of the conversation and of the message. These two texts are called the record of the message.
Messages are stored in batches, each in one transaction, so the next import continues an interrupted one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from agentformer.access.secret_masking import without_secrets
from agentformer.archive.chats.agents_and_memories import CLAUDE_CODE, CODEX, LANGCHAIN, ZEP, parts_of
from agentformer.archive.chats.chatgpt_and_claude import PLAIN, chat_of, digest_of, name_of
from agentformer.archive.chats.echoes import HOOK, echoes
from agentformer.archive.chats.files import ChatFile, Unusable, find_files, read_items
from agentformer.archive.chats.items import Chat, ChatMessage
from agentformer.errors import Conflict, InvalidInput, retried
from agentformer.memory.backends import all_entries
from agentformer.memory.batches import source_scopes
from agentformer.memory.validation import Place, new_entry, new_message, place_from
from agentformer.rag.folder_files import Problem
from agentformer.records import fields
from agentformer.types import MemoryBackend, MemoryEntry, Scope

_BATCH = 500  # messages of one transaction
_BATCH_CHARACTERS = 8 << 20
_UNUSABLE = 10_000  # values that are no conversation; a file that begins with so many is no chat export
_NAMELESS = (PLAIN, CODEX, LANGCHAIN, ZEP)  # formats whose messages may name no session
_SESSIONS = (CLAUDE_CODE, CODEX)  # formats in which a key or a password often stands, as in the output of a command
_TOOL = "tool"  # category of the uses of tools
_LISTED = 1_000  # at most this many problems are in a report

Progress = Callable[[int, int], None]  # bytes read, and bytes of all files


@dataclass(slots=True)
class ChatsImported:
    """The result of an import. `conversations` and `messages` are the numbers of stored conversations and messages.
    `there_already` is the number of messages that the memory had before. `skipped` is the number of messages that have
    no text, or are not from a person or an assistant. `failures` is the number of conversations and messages that
    cannot be used, and `failed` contains the first 1,000 of these, each with the reason."""

    conversations: int = 0
    messages: int = 0
    there_already: int = 0
    skipped: int = 0
    failures: int = 0
    failed: list[Problem] = field(default_factory=list)

    def add_failure(self, name: str, reason: str) -> None:
        """Add a conversation or a message that cannot be used."""
        self.failures += 1
        if len(self.failed) < _LISTED:
            self.failed.append(Problem(name, reason))


def import_chats(
    backend: MemoryBackend,
    path: str | os.PathLike[str],
    *,
    speaker: str = "",
    progress: Progress | None = None,
    **place: Unpack[Place],
) -> ChatsImported:
    """Store the conversations of a chat export as sessions. The export is from ChatGPT or Claude, or is a file of JSON
    Lines with role, content and time (docs/ARCHIVE.md). A message that was imported before is not stored again.

    `place` contains the owner of the messages. A message without a session gets `session_id` of `place`, or else the
    name of its file. `speaker` is the name of the user. `progress(read, total)` is called with the number of bytes that
    were read, and the number of all bytes. The result lists conversations that cannot be used. Raises `InvalidInput` if
    the file is not a chat export, or if `speaker` or a value of `place` is not valid."""
    if "\0" in str(path):
        raise InvalidInput("path", "is not a path, because it contains a NUL character")
    name = fields.text("speaker", speaker, fields.MAX_NAME)
    return _Import(backend, place_from(place), name).run(Path(path), progress)


class _Import:
    """Imports the files of one chat export. `place` contains the owner of the messages, and the session for messages
    that name no session. `speaker` is the name of the user."""

    def __init__(self, backend: MemoryBackend, place: Mapping[str, Any], speaker: str) -> None:
        self._backend = backend
        self._place = place
        self._speaker = speaker
        self._batch: dict[tuple[str, str], MemoryEntry] = {}  # by the record
        self._characters = 0
        self._sessions: set[bytes] = set()  # hashes of the sessions of stored messages
        self._captured: set[str] = set()  # ids of messages of hooks that this import has met
        # The id of the last conversation, and how often each of its messages without a time was repeated.
        self._timeless: tuple[str, dict[str, int]] = ("", {})
        self._done = ChatsImported()

    def run(self, path: Path, progress: Progress | None = None) -> ChatsImported:
        """Import a file, a folder or a ZIP archive. Raises `InvalidInput` if it is not a chat export."""
        files = find_files(path)
        total, before = sum(file.size for file in files), 0
        for number, file in enumerate(files):
            try:
                for name, chat, position in self._chats(file):
                    self._add(name, chat)
                    if progress:
                        progress(before + position, total)
            except InvalidInput as error:
                if not (number or self._done.messages or self._batch) and self._done.failures in (0, _UNUSABLE + 1):
                    raise
                self._done.add_failure(file.name, str(error).removeprefix("path: "))
            before += file.size
        self._flush()
        self._done.conversations = len(self._sessions)
        return self._done

    def _chats(self, file: ChatFile) -> Iterator[tuple[str, Chat, int]]:
        """Yield the name of each conversation of a file, the conversation, and the position in the file."""
        opening: Chat | None = None
        for value, number, position in read_items(file):
            name = f"{file.name}, {name_of(value, number)}"
            if self._done.failures > _UNUSABLE and not (self._done.messages or self._batch or self._done.skipped):
                problem = f"is not a chat export: none of the first {_UNUSABLE:,} values is a conversation"
                raise InvalidInput("path", f"{file.name} {problem}")
            if isinstance(value, Unusable):
                self._done.add_failure(name, str(value))
                continue
            parts = parts_of(value)
            for place, part in enumerate(parts, 1):
                named = f"{name}, item {place}" if len(parts) > 1 else name
                try:
                    chat = chat_of(part)
                except InvalidInput as error:
                    self._done.add_failure(named, str(error))
                    continue
                if chat.opens:
                    opening = chat
                if chat.source == CODEX and opening:
                    chat = replace(chat, id=opening.id, owner=opening.owner)
                if chat.source in _NAMELESS and not chat.id:
                    chat = replace(chat, id=self._place["session_id"] or file.path.stem[: fields.MAX_NAME])
                yield named, chat, position

    def _add(self, name: str, chat: Chat) -> None:
        """Add the messages of a conversation to the batch, and store the batch if it is full."""
        self._done.skipped += chat.skipped
        for number, message in enumerate(chat.messages, 1):
            try:
                entry = self._entry(chat, message)
            except InvalidInput as error:
                self._done.add_failure(f"{name}, message {number}", str(error))
                continue
            record = (entry.source_type or "", entry.source_id or "")
            if record in self._batch:
                self._done.there_already += 1
                continue
            self._batch[record] = entry
            self._characters += len(entry.content)
            if len(self._batch) >= _BATCH or self._characters >= _BATCH_CHARACTERS:
                self._flush()

    def _entry(self, chat: Chat, message: ChatMessage) -> MemoryEntry:
        """Return the entry of a message, of the use of a tool, or of a fact."""
        session = message.session or ("" if message.kind == "fact" else chat.id)
        if session and chat.source != PLAIN:
            session = f"{chat.source}:{session}"
        record = ZEP if chat.source == ZEP else chat.id  # ids of Zep are unique without the session
        owner = {name: value for name, value in {**chat.owner, **message.owner}.items() if value}
        text = without_secrets(message.text) if chat.source in _SESSIONS else message.text
        values = {
            **{**owner, **{name: value for name, value in self._place.items() if value is not None}},
            **({"session_id": _short(session, fields.MAX_NAME)} if session else {}),
            **{"content": text, "occurred_at": message.time, **message.values},
            "source_type": chat.source,
            "source_id": _short(f"{record}/{self._id(chat, message)}", fields.MAX_SOURCE_ID),
            "metadata": {**message.metadata, **({"conversation": chat.title[:500]} if chat.title else {})},
        }
        if message.attachments:
            values["metadata"]["attachments"] = [name[:200] for name in message.attachments[:100]]
        if message.kind == "fact":
            return new_entry(values)
        if message.kind == "tool":
            return new_entry({**values, "tier": "episodic", "category": _TOOL, "searchable": False})
        speaker = message.speaker or (self._speaker if message.role == "user" else "")
        return new_message({**values, "role": message.role, "speaker": speaker[: fields.MAX_NAME]})

    def _id(self, chat: Chat, message: ChatMessage) -> str:
        """Return the id of a message, or else its hash, which includes a count if equal messages have no time."""
        if message.id:
            return message.id
        repeated = 0
        if message.time is None:
            if self._timeless[0] != chat.id:
                self._timeless = (chat.id, {})
            counts, key = self._timeless[1], digest_of(chat.id, message, 0)
            repeated = counts[key] = counts.get(key, -1) + 1
        return digest_of(chat.id, message, repeated)

    def _flush(self) -> None:
        """Store the messages of the batch that the memory does not have."""
        retried(self._store, on=(_Stored,))

    def _store(self) -> None:
        """Store the batch in one transaction. Raises `_Stored` if another import has stored part of it meanwhile."""
        stored = (entry for scope in self._scopes(self._batch) for entry in all_entries(self._backend, scope))
        known = {(entry.source_type or "", entry.source_id or "") for entry in stored}
        missing = {record: entry for record, entry in self._batch.items() if record not in known}
        sessions = [entry for (source, _), entry in missing.items() if source in _SESSIONS]
        captured = echoes(self._backend, sessions, HOOK, self._captured)
        missing = {record: entry for record, entry in missing.items() if entry.id not in captured}
        scopes = self._scopes(missing)

        def check(ids: Callable[[Scope], Collection[str]]) -> None:
            if any(ids(scope) for scope in scopes):
                raise _Stored("another import stores the same messages; wait until it ends, and import the file again")

        if missing:
            self._backend.store([*missing.values()], check=check)
        for entry in missing.values():
            self._sessions.add(hashlib.blake2b((entry.session_id or "").encode(), digest_size=8).digest())
        self._done.messages += len(missing)
        self._done.there_already += len(self._batch) - len(missing)
        self._batch, self._characters = {}, 0

    def _scopes(self, entries: Mapping[tuple[str, str], MemoryEntry]) -> list[Scope]:
        """Return scopes that select the entries with the same records and owners, to find what the memory already has.
        Archived entries are included."""
        records: dict[tuple[str, str | None, str | None], list[str]] = {}
        for (kind, source), entry in entries.items():
            records.setdefault((kind, entry.user_id, entry.project), []).append(source)
        return [
            scope
            for (kind, *owner), ids in records.items()
            for scope in source_scopes(self._place["namespace"], kind, ids, owner=(owner[0], owner[1]), archived=True)
        ]


class _Stored(Conflict):
    """Raised if another import has stored a message of the batch after this import has searched for it. `_flush` then
    tries again without this message."""


def _short(text: str, most: int) -> str:
    """Return a text of at most `most` characters: the end of a longer text is replaced by a digest of the text."""
    if len(text) <= most:
        return text
    return f"{text[: most - 33]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"
