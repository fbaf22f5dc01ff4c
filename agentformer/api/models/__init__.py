"""Models of the requests and responses of the HTTP API, and types that several models use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.config import JsonDict

from agentformer.records.fields import MAX_NAME, NOT_BLANK
from agentformer.types import shown_fields

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


def fields_of(record: type, *, leave_out: Collection[str] = (), **types: Any) -> Any:
    """Return a base class of responses with the fields of a dataclass or a named tuple. The type of the record says how
    they are shown (see `types.Shown`). `types` has the types of fields whose JSON type is that of another model."""
    fields: dict[str, Any] = {
        shown.name: (types.get(name) or _json_type(hint), Field(description=shown.description or None, ge=shown.least))
        for name, (hint, shown) in shown_fields(record).items()
        if name not in leave_out
    }
    return create_model(f"_{record.__name__}Fields", __base__=ResponseModel, **fields)


def _json_type(hint: Any) -> Any:
    """Return the type of the JSON value for a type of Python."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return list[_json_type(inner[0])]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, inner[1]]  # type: ignore[valid-type]
    return str | None if hint == (datetime | None) else hint
