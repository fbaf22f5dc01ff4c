"""What a turn of the agent gives, and what is told of it while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Why a turn ended: the model answered; a limit of steps, time or tokens was reached; the model went round in circles;
# or could not make a reply that can be used; or it could not be asked, or said nothing usable at all.
Finish = Literal["answer", "steps", "time", "tokens", "repeating", "failed"]


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """A memory that the model was shown before it was asked. `share` is core, episodic or semantic."""

    id: str
    share: str
    kind: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The model asked for this, and it begins now."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A call and what came of it. `text` is the beginning of what the model was told; `failed` also of calls that were
    not run, with the reason as the text."""

    name: str
    arguments: Mapping[str, Any]
    failed: bool
    text: str
    ms: float


@dataclass(frozen=True, slots=True)
class Cited:
    """A place of a document that the answer names and that the model had before it. `quote` is a part of its text."""

    document: str
    page: int | None
    label: str
    quote: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """`steps` are the model's replies. Tokens are those that the server counted; of a server that counts none, 0."""

    session_id: str
    text: str
    finish: Finish
    steps: int
    tool_runs: tuple[ToolRun, ...] = ()
    memories: tuple[UsedMemory, ...] = ()
    citations: tuple[Cited, ...] = ()
    warnings: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Recalled:
    """The context is built; these memories are in it."""

    memories: tuple[UsedMemory, ...]


TurnEvent = Recalled | ToolStart | ToolRun
OnEvent = Callable[[TurnEvent], object]  # called in the thread of the turn, in order
