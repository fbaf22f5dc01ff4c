"""Selection of the hits that can answer a question. Messages that only ask a question are left out. Among facts that
contradict each other, the newest comes first."""

from __future__ import annotations

from agentformer.search.newest_facts import latest_first
from agentformer.text.sentences import sentence_spans
from agentformer.types import Hit, Hits, MemoryEntry

_CHUNK, _MESSAGE = "chunk", "message"
_ASKS = ("?", "？", "؟")  # at the end of a question
_CLOSERS = " \t\n\"'”’»)]*_"


def usable(hits: Hits, question: str, session_id: str | None = None) -> Hits:
    """Return the hits that can answer the question, in the order of a memory search: among facts that contradict each
    other, the newest comes first. Messages that only ask a question are dropped, such as the same question in an
    earlier conversation. Messages of the session `session_id` are dropped, too, because the caller already has them."""
    if all(hit.entry.kind == _CHUNK for hit in hits):
        return hits
    return hits.with_hits(latest_first([hit for hit in hits if _answers(hit, question, session_id)]))


def _answers(hit: Hit, question: str, session_id: str | None) -> bool:
    entry = hit.entry
    if entry.kind != _MESSAGE:
        return True
    own = session_id is not None and entry.session_id == session_id
    return not own and _plain(entry.content) != _plain(question) and not _only_asks(entry)


def _only_asks(entry: MemoryEntry) -> bool:
    spans = sentence_spans(entry.content)
    return bool(spans) and all(entry.content[s.start : s.end].rstrip(_CLOSERS).endswith(_ASKS) for s in spans)


def _plain(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())
