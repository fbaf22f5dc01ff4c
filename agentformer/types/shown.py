"""The form in which HTTP, tools and the command line show the fields of a type. A field is described once, at its type:

confidence: Annotated[float | None, Shown("The probability that the first quote answers the question.", digits=6)]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """The form of a field in JSON: its `name`, if it differs from that of the field, and the number of decimal `digits`
    to which it is rounded. The HTTP API also shows the `description` and the smallest value, `least`."""

    description: str = ""
    name: str = ""
    digits: int | None = None
    least: int | None = None


@cache
def shown_fields(record: type) -> Mapping[str, tuple[Any, Shown]]:
    """Return the fields of a dataclass or a named tuple, in order, each with its type and its form in JSON. The form
    always has a name."""
    names = getattr(record, "_fields", None) or [field.name for field in dataclasses.fields(record)]
    hints = get_type_hints(record, include_extras=True)
    return {name: _shown(name, hints[name]) for name in names}


def _shown(name: str, hint: Any) -> tuple[Any, Shown]:
    shown = Shown()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        shown = next((extra for extra in extras if isinstance(extra, Shown)), shown)
    return hint, shown if shown.name else dataclasses.replace(shown, name=name)
