"""What a store tells of its embedding spaces, of what waits for vectors, and of a move to another space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentformer.types.models import EmbeddingSpace


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry that has no vectors yet, with how often they were tried for and what went wrong last."""

    entry_id: str
    attempts: int
    last_error: str


@dataclass(frozen=True, slots=True)
class SpaceState:
    """A space of a store. Searches use the `active` one; `building` is filled by `reembed`; `kept` were active once.
    `waiting` counts the entries that a building space still lacks."""

    space: EmbeddingSpace
    state: Literal["active", "building", "kept"]
    vectors: int
    bytes: int  # of the vectors alone
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Reembedding:
    """How a move to another space went.

    `overlap` is the mean share of the nearest ten entries that both spaces agree on, 0..1, over `sample` entries of
    the store or over the queries given; None where there was nothing to compare.
    """

    former: EmbeddingSpace | None
    space: EmbeddingSpace
    switched: bool  # False: the store was in this space already
    entries: int = 0  # whose vectors this run completed
    embedded: int = 0  # texts that the model was asked for
    reused: int = 0  # texts whose vectors an earlier run had made
    failed: int = 0  # entries that the model refuses; they wait, with the error
    seconds: float = 0.0
    overlap: float | None = None
    sample: int = 0
