"""What a store tells of its soundness, and a view of it that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agentformer.types.memory import MemoryEntry, Scope
from agentformer.types.models import EmbeddingSpace, Vector


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was verified. The store is sound where nothing was found, or all that was is mended."""

    name: str  # "records", "vectors", "windows", "words", ...
    asked: str  # what holds where nothing is found, in plain words
    looked_at: int  # how many things
    found: int = 0  # how many of them are wrong
    mended: int = 0  # how many of those were put right
    findings: tuple[str, ...] = ()  # the first ones, in words, each with what to do or what was done
    lost: int = 0  # how many of the mended could only be set aside: what they said is out of the memory


class StoredVector(NamedTuple):
    """A vector as it is kept: of the text with this SHA-256, in this space."""

    space: EmbeddingSpace
    hash: bytes
    vector: Vector  # float32[dimension], unit length


class MemorySnapshot(Protocol):
    """All that a store held at one moment, whatever is written meanwhile."""

    def namespaces(self) -> Sequence[str]:
        """Every namespace that holds an entry, sorted."""
        ...

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Entries of the scope with an id above `after`, in order of id."""
        ...

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Former versions, oldest first."""
        ...

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """The vectors of the active space that entries of these namespaces use, each once, in order of hash; none for
        a backend that keeps no vectors."""
        ...
