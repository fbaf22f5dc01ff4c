"""Learning: facts are taken from messages of users and stored as entries, each with the words that prove it.

`learner.py` reads the messages of a session in batches. `told.py` and `asking.py` propose facts without and with a
language model. `checking.py` drops each proposal that its message does not prove, and makes entries of the others.
`journal.py` records which messages were read, so that no message is read twice, and undoes a run. `profile.py` lists
what holds now about a person. This module has their common types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from agentformer.types import MemoryEntry

FACT = "fact"  # the kind of a learnt entry
Relation = Literal["new", "replaces", "adds", "known"]


class Proposal(NamedTuple):
    """A fact that may be stored: its text, and the quote that proves it in the content of its message. `known` is
    a stored fact that the text replaces, completes or repeats, or None."""

    message: MemoryEntry
    quote: str
    text: str
    relation: Relation = "new"
    known: MemoryEntry | None = None


@dataclass(frozen=True, slots=True)
class LearntFact:
    """A learnt fact. `quote` are the words of the message that state it, `at` is the time of the message, and
    `replaces` is the id of the fact that it has superseded. `id` is "" in a dry run."""

    id: str
    text: str
    quote: str
    message_id: str
    speaker: str
    at: datetime | None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class LearningReport:
    """The result of a run. `run` is the id with which the run can be undone, or "" if nothing was read. `messages` is
    the number of messages that were read, and `known` is the number of facts that were known already. `dropped` maps
    each reason to the number of proposed facts that were dropped for it. `calls`, `tokens_in` and `tokens_out` are the
    cost of the language model. `busy` are the sessions that another caller was reading."""

    run: str = ""
    sessions: int = 0
    messages: int = 0
    facts: tuple[LearntFact, ...] = ()
    known: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    busy: tuple[str, ...] = ()

    def __add__(self, other: LearningReport) -> LearningReport:
        return LearningReport(
            self.run or other.run,
            self.sessions + other.sessions,
            self.messages + other.messages,
            self.facts + other.facts,
            self.known + other.known,
            dict(Counter(self.dropped) + Counter(other.dropped)),
            self.calls + other.calls,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.busy + other.busy,
        )


@dataclass(frozen=True, slots=True)
class LearningRun:
    """A stored run. `facts` is the number of facts that it has stored."""

    id: str
    at: datetime | None
    sessions: tuple[str, ...]
    messages: int
    facts: int
    undone: bool


@dataclass(frozen=True, slots=True)
class UndoneLearning:
    """The result of undoing a run. `archived` are the ids of its facts that searches no longer find. `kept` are the ids
    of its facts that a caller has changed; they stay."""

    run: str
    archived: tuple[str, ...]
    kept: tuple[str, ...]
