"""Learning: facts are taken from messages of users and stored as entries, each with the words that prove it.

`learner.py` reads the messages of a session in batches, and proposes facts by the form of the sentences; `asking.py`
proposes facts with a language model. `checking.py` drops each proposal that its message does not prove, and makes
entries of the others. `journal.py` records which messages were read, so that no message is read twice, and undoes a
run. `profile.py` lists what holds now about a person. This module has their common types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from agentformer.types import MemoryEntry, Shown

FACT = "fact"  # the kind of a learnt entry
Relation = Literal["new", "replaces", "adds", "known"]
_DROPPED = (
    "The number of proposed facts that were dropped for each reason, such as `quote`: the words are "
    "not in the message. docs/MEMORY.md lists the reasons."
)


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
    """A fact that was learnt from a message."""

    id: Annotated[str, Shown("The id of the entry; empty in a dry run.")]
    text: str
    quote: Annotated[str, Shown("The words of the message that state the fact.")]
    message_id: str
    speaker: str
    at: Annotated[datetime | None, Shown("The time of the message.")]
    replaces: Annotated[str | None, Shown("The id of the known fact that it has superseded.")] = None


@dataclass(frozen=True, slots=True)
class LearningReport:
    """The result of learning facts from messages."""

    run: Annotated[str, Shown("The id with which the run can be undone; empty if nothing was stored.")] = ""
    sessions: Annotated[int, Shown("The number of sessions that had messages to read.")] = 0
    messages: Annotated[int, Shown("The number of messages of users that were read.")] = 0
    facts: tuple[LearntFact, ...] = ()
    known: Annotated[int, Shown("The number of stated facts that were known already.")] = 0
    dropped: Annotated[Mapping[str, int], Shown(_DROPPED)] = field(default_factory=dict)
    calls: Annotated[int, Shown("The number of calls of a language model.")] = 0
    tokens_in: int = 0
    tokens_out: int = 0
    busy: Annotated[tuple[str, ...], Shown("The sessions that another caller is reading now.")] = ()

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
    """A run of learning that has stored facts. `facts` is their number."""

    id: str
    at: datetime | None
    sessions: tuple[str, ...]
    messages: int
    facts: int
    undone: bool


@dataclass(frozen=True, slots=True)
class UndoneLearning:
    """The result of undoing a run of learning."""

    run: str
    archived: Annotated[tuple[str, ...], Shown("The ids of the facts that searches no longer find.")]
    kept: Annotated[tuple[str, ...], Shown("The ids of the facts that a caller has changed, and that therefore stay.")]
