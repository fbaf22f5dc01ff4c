"""Uploads: what goes with the files, and what became of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.config import JsonDict

from agentformer.api.models.common import Namespace, ResponseModel
from agentformer.api.models.documents import Document
from agentformer.api.request import ParameterModel

_LONGEST_METADATA = 100_000  # characters: of any alphabet less than the 500 kB that a form's field may have
_LONGEST_PASSWORD = 1000  # characters; PDF's own limit is 127 bytes
_OBJECT: JsonDict = {"contentMediaType": "application/json", "contentSchema": {"type": "object"}}


class UploadForm(ParameterModel):
    """What holds for every file of the request."""

    namespace: Namespace = None
    metadata: Annotated[str, Field(max_length=_LONGEST_METADATA, json_schema_extra=_OBJECT)] | None = Field(
        default=None,
        description="A JSON object. Questions can be filtered by it.",
        examples=['{"site": "north"}'],
    )
    password: Annotated[str, Field(max_length=_LONGEST_PASSWORD)] | None = Field(
        default=None, description="Of encrypted files. It is forgotten when they are read."
    )


class Uploaded(ResponseModel):
    """What became of each file, in the order in which they were sent."""

    documents: list[Document]
