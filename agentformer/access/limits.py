"""The limits of a key: requests in a minute, entries and bytes stored, and questions to a language model in a day.

Entries and bytes are those that the namespaces of the key contain, whoever stored them: each entry with its pages and
chunks, the bytes of its text in UTF-8, and the size of an uploaded file. They are counted as a whole at most once a
minute, and when a request would be refused although something has changed since. In between, only what any process has
stored since is added, so a request does not wait for a large store.

Questions are counted in a file beside the keys, for all processes and over restarts, by days in UTC.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from filelock import Timeout

from agentformer.access.allowance import Allowance
from agentformer.access.places import KeyPlace
from agentformer.access.rates import DAY, Quota
from agentformer.errors import Busy, KeyFull, StoreDamaged, StoreError
from agentformer.records.offers import size_of
from agentformer.types import MemoryBackend, StoreSize

_FRESH = 60.0  # seconds for which a whole count is used
_AGAIN = 1.0  # seconds between two whole counts, if a request would be refused
_SHARE = 50  # a whole count takes at most one part in so many of the time
_MOST_COUNTED = 1_000  # sets of namespaces whose counts are remembered
_DAYS = 4  # days whose questions are remembered, so that a clock that jumps to another day and back forgets none
_LOCK_SECONDS = 10.0
_VERSION = 1


class DayCounts:
    """Counts the questions of keys by days in UTC, as JSON in `place`. Each day has its own counts, so a clock that is
    set back counts on where it was on that day. Thread-safe, in all processes. Methods raise `StoreError` if the counts
    cannot be read or written, and `Busy` if another process holds the lock."""

    def __init__(self, place: KeyPlace, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._place = place
        self._clock = clock

    def quota(self, key_id: str, limit: int) -> Quota:
        """Return the questions that the key has left today."""
        now = self._clock()
        return _day_quota(limit, self._read().get(now.date().isoformat(), {}).get(key_id, 0), now)

    def take(self, key_id: str, limit: int) -> tuple[Quota, bool]:
        """Count a question. Return what is left, and whether the question is allowed."""
        try:
            with self._place.locked(_LOCK_SECONDS):
                now, days = self._clock(), self._read()
                day = now.date().isoformat()
                counts = days.pop(day, {})
                used = counts.get(key_id, 0)
                if allowed := used < limit:
                    counts[key_id] = used = used + 1
                    latest = dict([*days.items(), (day, counts)][-_DAYS:])  # the day of the last question is the last
                    self._place.write(json.dumps({"version": _VERSION, "days": latest}).encode())
        except Timeout:
            raise Busy("questions_per_day", "another process is counting a question; try again in a moment") from None
        return _day_quota(limit, used, now), allowed

    def _read(self) -> dict[str, dict[str, int]]:
        data = self._place.read()
        if data is None:
            return {}
        try:
            content = json.loads(data)
            days = {day: dict(counts) for day, counts in content["days"].items()}
            counts = [count for each in days.values() for count in each.values()]
            if content["version"] == _VERSION and all(type(count) is int and count >= 0 for count in counts):
                return days
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        raise StoreDamaged(
            f"{self._place} is damaged, or was written by a newer version; keys with a limit of questions are refused "
            "until you delete it, which sets the counts of today to 0"
        )


def _day_quota(limit: int, used: int, now: datetime) -> Quota:
    midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
    return Quota(limit, max(0, limit - used), math.ceil((midnight - now).total_seconds()), DAY)


class KeyLimits:
    """Checks the limits of keys against a memory. `questions` counts the questions, and `uses_model` returns whether a
    language model answers questions. Thread-safe."""

    def __init__(self, store: MemoryBackend, questions: DayCounts, uses_model: Callable[[], bool]) -> None:
        self._store = store
        self._questions = questions
        self._uses_model = uses_model
        self._counted: dict[tuple[str, ...], _Counted] = {}
        self._lock = threading.Lock()

    def take_question(self, allowance: Allowance | None) -> None:
        """Count a question that a language model is going to answer. Without a model, nothing is counted. Raises `Busy`
        if the key has asked as many today as it may; see also `DayCounts`."""
        if allowance is None or not (limit := allowance.limits.questions_per_day) or not self._uses_model():
            return
        quota, allowed = self._questions.take(allowance.key_id, limit)
        allowance.quotas["questions"] = quota
        if not allowed:
            message = f"this key may ask a language model {limit} questions a day; wait until midnight UTC"
            raise Busy("questions_per_day", message, quota.seconds)

    def require_room(self, allowance: Allowance | None, incoming: int = 0, *, new_entries: bool = True) -> None:
        """Raise `KeyFull` if the namespaces of the key contain as many bytes as the key may store, or as many entries
        and the request adds `new_entries`, or if `incoming`, the bytes of the request, do not fit."""
        if allowance is None or not (allowance.limits.max_entries or allowance.limits.max_bytes):
            return
        limits = allowance.limits
        most = (limits.max_entries if new_entries else 0) or math.inf, limits.max_bytes or math.inf

        def has_room(size: StoreSize) -> bool:
            return size.entries < most[0] and size.bytes < most[1] and size.bytes + incoming <= most[1]

        size = self._size(allowance.namespaces, has_room)
        for name, most_of, used in (("entries", limits.max_entries, size[0]), ("bytes", limits.max_bytes, size[1])):
            if most_of:
                allowance.quotas[name] = Quota(most_of, max(0, most_of - used), 0, 0)
        if has_room(size):
            return
        if size.entries >= most[0]:
            limit, reason = "max_entries", f"{limits.max_entries} entries, and its namespaces contain {size.entries}"
        else:
            more = f"; the request has {incoming}" if size.bytes < most[1] else ""
            limit, reason = "max_bytes", f"{limits.max_bytes} bytes, and its namespaces contain {size.bytes}{more}"
        raise KeyFull(limit, f"this key may store {reason}; delete some, or ask the administrator for a higher limit")

    def has_room(self, allowance: Allowance | None) -> bool:
        """Return whether the key may store another entry."""
        try:
            self.require_room(allowance)
        except KeyFull:
            return False
        return True

    def _size(self, namespaces: tuple[str, ...], has_room: Callable[[StoreSize], bool]) -> StoreSize:
        """Return what the namespaces contain. A count that is not fresh is renewed by a thread, unless `has_room` is
        false for it: then the request waits for a whole count, if the last one is not too young."""
        asked = time.monotonic()
        with self._lock:
            counted = self._counted.get(namespaces)
        if counted is not None and counted.at > -math.inf:
            age = asked - counted.at
            size = size_of(self._store, namespaces, counted.size)
            counted.size = size
            if has_room(size):
                if age >= max(_FRESH, counted.seconds * _SHARE) and not counted.counting.locked():
                    threading.Thread(target=self._renew, args=(namespaces, counted), daemon=True).start()
                return size
            if (size.states and size.states == counted.states) or age < max(_AGAIN, counted.seconds * _SHARE):
                return size
        with self._lock:
            if len(self._counted) > _MOST_COUNTED:
                self._counted.clear()
            counted = self._counted.setdefault(namespaces, counted or _Counted())
        return self._whole(namespaces, counted, asked)

    def _whole(self, namespaces: tuple[str, ...], counted: _Counted, asked: float) -> StoreSize:
        """Count the whole, unless another thread has begun to do so since the time `asked`."""
        with counted.counting:
            began = time.monotonic()
            if counted.at >= asked:
                return size_of(self._store, namespaces, counted.size)
            counted.size = size = size_of(self._store, namespaces)
            counted.states, counted.at, counted.seconds = size.states, began, time.monotonic() - began
        return size

    def _renew(self, namespaces: tuple[str, ...], counted: _Counted) -> None:
        with suppress(StoreError):  # the next request tries again
            self._whole(namespaces, counted, time.monotonic())


class _Counted:
    """The last count of some namespaces."""

    size = StoreSize()
    states: Sequence[tuple[int, int]] = ()  # of the store at the last whole count
    at = -math.inf  # monotonic time of the last whole count
    seconds = 0.0  # that it took

    def __init__(self) -> None:
        self.counting = threading.Lock()
