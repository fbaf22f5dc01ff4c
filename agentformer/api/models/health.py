"""How the server is."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentformer.api.models.common import ResponseModel


class Alive(ResponseModel):
    """The process answers."""

    status: Literal["ok"]


class Parts(ResponseModel):
    """`ok`, or in a few words what is the matter."""

    store: str
    index: str
    embedder: str = Field(description="While it is away, memories are kept, and found by their words.")


class Readiness(ResponseModel):
    """Whether requests can be served now."""

    status: Literal["ready", "not ready"]
    parts: Parts


class State(BaseModel):
    """Counts and state of all parts; which there are depends on the backend."""

    model_config = ConfigDict(extra="allow")

    cleaner: dict[str, Any]
    spaces: list[Any] = Field(description="Embedding spaces.")
    providers: dict[str, Any] = Field(description="What each was asked, and what it cost.")
