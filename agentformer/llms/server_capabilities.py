"""What one server turned out not to take, so that it is asked in a way that it does.

"OpenAI-compatible" is a matter of degree: newer models refuse `max_tokens` or a temperature, older servers know no
JSON Schema or no usage in streams. Each is tried once, and remembered when a server refuses it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentformer.http.openai_client import Failure
from agentformer.llms.structured import Schema
from agentformer.types import ChatMessage

_UNKNOWN = re.compile(
    r"unsupported|not support|unrecognized|unknown|unexpected|not permitted|extra|only the default|not allowed",
    re.IGNORECASE,
)
_FORMAT = re.compile(r"response_?format|json_schema|json_object|structured output|guided", re.IGNORECASE)
_THIS_SCHEMA = re.compile(r"invalid schema|schema conversion|grammar|strict", re.IGNORECASE)
SHAPES = ("json_schema", "json_object", "text")  # from the firmest to none


class Dialect:
    """Memory about one server and model. Threads may share it: the worst is that one of them asks in vain once."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def options(self, *, temperature: float, max_tokens: int, stream: bool) -> dict[str, Any]:
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        options: dict[str, Any] = {limit: max_tokens}
        if "temperature" not in self._refused:
            options["temperature"] = temperature
        if stream:
            options["stream"] = True
            if "stream_options" not in self._refused:
                options["stream_options"] = {"include_usage": True}
        return options

    def shaped(
        self, messages: Sequence[ChatMessage], schema: Schema | None, below: str
    ) -> tuple[Sequence[ChatMessage], dict[str, Any]]:
        """The messages and the part of a request that ask for JSON: in the firmest way that the server is not known
        to refuse, below the shape `below`. Where it is not told the schema, the model is."""
        if schema is None:
            return messages, {}
        left = SHAPES[SHAPES.index(below) + 1 :] if below else SHAPES
        usable = [s for s in left if s not in self._refused and (schema.is_object or s != "json_object")]
        shape = usable[0] if usable else "text"
        if shape == "json_schema":
            described: dict[str, Any] = {"name": "reply", "schema": schema.wire}
            if schema.strict:
                described["strict"] = True
            return messages, {"response_format": {"type": shape, "json_schema": described}}
        asked = [*messages, ChatMessage("user", schema.instruction)]
        if schema.instruction in messages[-1].content:  # the model has just been told
            asked = list(messages)
        elif messages[-1].role == "user":  # some models take no two messages of one role in a row
            asked = [*messages[:-1], ChatMessage("user", f"{messages[-1].content}\n\n{schema.instruction}")]
        return asked, {"response_format": {"type": shape}} if shape == "json_object" else {}

    def learn(self, failure: Failure, sent: Mapping[str, Any]) -> str:
        """What the server refused of the request, to be asked otherwise; "" where nothing is to be tried. A shape that
        it refuses for this schema alone is not remembered."""
        if failure.kind != "rejected":
            return ""
        said = failure.said
        for name in ("max_tokens", "temperature", "stream_options"):
            # A refused value of the caller's, such as too high a limit, is the caller's to mend.
            if name in sent and name in said and (name == "stream_options" or _UNKNOWN.search(said)):
                self._refused.add(name)
                return name
        shape = str(sent.get("response_format", {}).get("type", ""))
        if shape and _THIS_SCHEMA.search(said):
            return shape
        if shape and _FORMAT.search(said):
            self._refused.add(shape)
            return shape
        return ""
