"""Limits for JSON of clients, so that refusing a text costs little more than reading it. A decoded value takes many
times the memory of its text, and pydantic makes an error for each unknown name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import islice
from typing import Any

from pydantic import AliasChoices, BaseModel

from agentformer.errors import TooLarge

MAX_VALUES = 200_000  # values of one text; a batch of 1,000 entries with 100 fields of metadata has 120,000
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)


def check_values(data: bytes, most: int = 0) -> None:
    """Raise `TooLarge` if a JSON text has more than `most` values (0: `MAX_VALUES`): the members of its objects, the
    items of its lists, its objects and its lists. The text need not be valid JSON."""
    most = most or MAX_VALUES
    if sum(map(data.count, (b",", b"[", b"{"))) <= most:
        return  # strings may contain these characters, too
    values = 0
    for match in _TOKEN.finditer(data):
        values += data[match.start()] != 0x22
        if values > most:
            message = f"a JSON text may have at most {most} values; send less data in one request"
            raise TooLarge("max_json_values", message)


def with_few_unknown(values: Mapping[str, Any], model: type[BaseModel], most: int) -> Mapping[str, Any]:
    """Return the values without the names that `model` does not have, apart from the first `most` of them. The model
    then makes an error only for these."""
    known = _names(model)
    if known.issuperset(values):
        return values
    unknown = islice((name for name in values if name not in known), most)
    return {name: values[name] for name in (*(name for name in known if name in values), *unknown)}


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    names: set[str] = set()
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names.update(map(str, alias.choices) if isinstance(alias, AliasChoices) else (alias or name,))  # type: ignore
    return frozenset(names)


def is_storable(value: Any, depth: int) -> bool:
    """Return True if the value can be stored: all its texts can be written as UTF-8, and its lists and objects are
    nested at most `depth` levels deep."""
    if isinstance(value, str):
        try:
            return value.isascii() or bool(value.encode("utf-8"))
        except UnicodeEncodeError:
            return False
    if isinstance(value, Mapping):
        value = (*value.keys(), *value.values())
    if not isinstance(value, (list, tuple)):
        return True
    return depth > 0 and all(is_storable(item, depth - 1) for item in value)
