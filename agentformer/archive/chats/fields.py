"""Fields of the JSON of chat exports, read with their types: texts, times, ids and roles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.records import fields

ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "ai", "bot", "chatbot", "gpt", "model"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),  # the newer name of OpenAI
    **dict.fromkeys(("tool", "function", "ipython", "observation"), "tool"),
}
_MILLISECONDS = 1e11  # a larger number of seconds would be after the year 5138
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(value: Any) -> str:
    """Return a value as text. A half of a surrogate pair, as in a text that was cut in an emoji, becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", str(value))


def joined(parts: Any) -> str:
    """Join the texts of a list of parts. A part is a text, or an object with a field `text`."""
    if not isinstance(parts, list):
        return ""
    texts = [
        part if isinstance(part, str) else text_of(part, "text") if isinstance(part, dict) else "" for part in parts
    ]
    return clean("\n\n".join(text for text in texts if text.strip()))


def time_of(value: Any, name: str = "time") -> datetime | None:
    """Return the time that a value describes: seconds or milliseconds since 1970, or ISO 8601. A time without a time
    zone is in UTC. Return None for None and "". Raises `InvalidInput` with the field `name` for any other value."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > _MILLISECONDS else value, UTC)
        moment = datetime.fromisoformat(value)
        return fields.moment(name, moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (TypeError, ValueError, OverflowError, OSError):
        reason = "must be ISO 8601, or seconds since 1970"
        raise InvalidInput(name, f"{reason}, got {str(value)[:80]!r}") from None


def text_of(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    return clean(text) if isinstance(text, str) else ""


def id_of(value: Mapping[str, Any], *names: str) -> str:
    """Return the first field of `names` that has an id, as text, or "". An id is a number, or a text that is not blank.
    The numbers 1 and 1.0 are the same id."""
    for name in names:
        each = value.get(name)
        if isinstance(each, float) and each.is_integer():
            each = int(each)
        if isinstance(each, (str, int, float)) and not isinstance(each, bool) and str(each).strip():
            return clean(each)
    return ""


def object_of(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def list_of(value: Mapping[str, Any], name: str) -> list[Any]:
    inner = value.get(name)
    return inner if isinstance(inner, list) else []
