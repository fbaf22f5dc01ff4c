"""The limits of a key as values, and what a request has left of them; `access.limits` checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agentformer.access.rates import Quota
from agentformer.errors import InvalidInput

HIGHEST: Mapping[str, int] = {  # limit -> its highest value; JavaScript reads each of them exactly
    "requests_per_minute": 1_000_000,
    "max_entries": 1_000_000_000_000,
    "max_bytes": 1_000_000_000_000_000,
    "questions_per_day": 1_000_000,
}


class Limits(NamedTuple):
    """The limits of a key; 0: no limit. Each server process accepts `requests_per_minute`; the others hold for all
    processes together."""

    requests_per_minute: int = 0
    max_entries: int = 0
    max_bytes: int = 0
    questions_per_day: int = 0


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of the key of a request, the namespaces of the key (none: all), and what the key has left of each
    limit that was looked at, by its name in the header RateLimit."""

    key_id: str
    limits: Limits
    namespaces: tuple[str, ...] = ()
    quotas: dict[str, Quota] = field(default_factory=dict)


def checked_limits(given: Mapping[str, object]) -> dict[str, int]:
    """Return limits by name. Raises `InvalidInput` for an unknown name, and for a value that is not a whole number
    between 0 and the highest value of the limit."""
    checked = {}
    for name, value in given.items():
        if name not in HIGHEST:
            raise InvalidInput(name[:80], f"is not a limit of a key; the limits are {', '.join(HIGHEST)}")
        if type(value) is not int or not 0 <= value <= HIGHEST[name]:
            raise InvalidInput(name, f"must be a whole number in 0..{HIGHEST[name]}; 0: no limit")
        checked[name] = value
    return checked
