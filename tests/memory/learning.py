"""Messages and models for the tests of learning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.lazy import Lazy
from agentformer.memory.learning.learner import Learner, LearningOptions
from agentformer.memory.recall import Recall
from agentformer.testing import make_entry
from agentformer.types import ChatMessage, LanguageModel, MemoryBackend, MemoryEntry, Reply, Scope, Tool

NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
EMBEDDER = HashingEmbedder()


class Lister:
    """A model that lists given facts, one list for each call, the last one again and again. An item may be a text,
    which it says instead, or an error, which it raises. `meanwhile` runs before it answers."""

    def __init__(self, *replies: Any, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.replies = list(replies)
        self.meanwhile = meanwhile
        self.asked: list[str] = []

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        self.asked.append("\n".join(message.content for message in messages))
        self.meanwhile()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        text = reply if isinstance(reply, str) else json.dumps({"facts": reply})
        return Reply(text, "lister", 100, 10)

    def stream(self, *given: Any, **options: Any) -> Any:
        raise NotImplementedError


def listed(message: int, quote: str, fact: str = "", relation: str = "new", known: int | None = None) -> dict[str, Any]:
    """A fact as a model lists it."""
    return {"message": message, "quote": quote, "fact": fact or quote, "relation": relation, "known": known}


def tell(backend: MemoryBackend, *texts: str, minutes: int = 0, **values: Any) -> list[MemoryEntry]:
    """Store messages of Aino in the session `monday`, a minute apart."""
    given = {"session_id": "monday", "role": "user", "user_id": "aino", **values}
    entries = [
        make_entry(text, kind="message", tier="episodic", occurred_at=NOON + timedelta(minutes=minutes + n), **given)
        for n, text in enumerate(texts)
    ]
    return [*backend.store(entries)]


def learner_of(backend: MemoryBackend, model: LanguageModel | None = None, **options: Any) -> Learner:
    recall = Recall(backend, EMBEDDER, noise_floor=0.2)

    def count(text: str) -> int:
        return len(EMBEDDER.token_spans(text))

    return Learner(backend, Lazy(lambda: model), count, recall, LearningOptions(**options))


def facts(backend: MemoryBackend, **scope: Any) -> list[str]:
    """The texts of the facts that hold, in the order of their times."""
    return [entry.content for entry in reversed(backend.latest(Scope(kinds=("fact",), **scope), limit=100))]
