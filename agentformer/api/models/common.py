"""What several endpoints share: problems, and the parts of which questions are made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentformer.records.fields import MAX_NAME

MOST_LISTED = 200  # of one page of a list

# A character that is not blank, to Python, to Rust and to ECMAScript, which JSON Schema follows.
NOT_BLANK = r"[^\s\u0085\u001c-\u001f\ufeff]"
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=NOT_BLANK)]
Namespace = Annotated[
    Name | None,
    Field(description="Where to work. Left out: the key's only namespace, else `default`.", examples=["default"]),
]
Limit = Annotated[int, Field(ge=1, le=MOST_LISTED, description="At most so many.")]
Cursor = Annotated[str, Field(max_length=MAX_NAME, description="The `next` of the page before.")]
Tier = Literal["core", "semantic", "episodic", "working"]


class ResponseModel(BaseModel):
    """Base of what goes out: every key is always there, and no other."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """What went wrong (RFC 9457). `type` is stable; further members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="What kind of problem it is.", examples=["urn:agentformer:problem:invalid-input"])
    title: str = Field(description="The same in a few words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(default="", description="What is wrong with this request, and what to do.")
    field: str = Field(default="", description="The parameter or the part of the body that is wrong.")
    limit: str = Field(default="", description="The setting that stands in the way.")
    request_id: str = Field(default="", description="Names this request in the server's log.")
