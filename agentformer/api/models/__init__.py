"""Models of the requests and responses of the HTTP API, and types that several models use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from agentformer.records.fields import MAX_NAME, NOT_BLANK

MAX_LISTED = 200  # items in one page of a list

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=NOT_BLANK)]
Namespace = Annotated[
    Name | None,
    Field(
        description="The namespace. By default, `default`, or the namespace of a key that is limited to one namespace.",
        examples=["default"],
    ),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LISTED, description="The maximum number of items.")]
Cursor = Annotated[str, Field(max_length=MAX_NAME, description="The value of `next` on the previous page.")]
Tier = Literal["core", "semantic", "episodic", "working"]
Next = Annotated[str | None, Field(description="The value of `after` for the next page, or null on the last page.")]
_DAY: JsonDict = {"anyOf": [{"format": "date"}, {"format": "date-time"}]}
Day = Annotated[str, Field(json_schema_extra=_DAY, examples=["2026-11-20"])]  # a day, or a time with a time zone
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-20T09:30:00+00:00"])]
AsOf = Annotated[
    Moment | None, Field(description="Use the entries that held at this time. By default, those that hold now.")
]
Text = Annotated[str, Field(min_length=1, pattern=NOT_BLANK)]


class ResponseModel(BaseModel):
    """Base class of responses. A response always contains all fields of its model, and no other fields."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """An error in the format of RFC 9457. The values of `type` are the same in all versions. Some types of errors have
    additional fields."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The kind of error, as a URI.", examples=["urn:agentformer:problem:invalid-input"])
    title: str = Field(description="The kind of error in a few words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(default="", description="A description of the error, and how to correct it.")
    field: str = Field(default="", description="The name of the invalid parameter or field.")
    limit: str = Field(default="", description="The limit that the request exceeds.")
    request_id: str = Field(default="", description="The id of this request in the server's log.")
