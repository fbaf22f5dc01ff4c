"""The limits of a key: requests in a minute, entries and bytes stored, and questions to a language model in a day.

Entries and bytes are those that the namespaces of the key contain, whoever stored them: each entry with its pages and
chunks, the bytes of its text in UTF-8, and the size of an uploaded file. They are counted as a whole at most once a
minute, and when a request would be refused although something has changed since. In between, only what any process has
stored since is added, so a request does not wait for a large store. A request reserves what it is about to store, so
requests of one process that run at the same time do not take the same room.

Questions are counted in a file beside the keys, for all processes and over restarts, by days in UTC. Each process
counts requests, and wrong keys from one address, for itself.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, Self, TypeGuard

from filelock import Timeout

from agentformer.access.key_storage import KeyPlace
from agentformer.errors import Busy, InvalidInput, KeyFull, StoreDamaged, StoreError
from agentformer.lazy import Lazy
from agentformer.records.offers import size_of
from agentformer.types import LanguageModel, MemoryBackend, StoreSize

HIGHEST: Mapping[str, int] = {  # limit -> its highest value; JavaScript reads each of them exactly
    "requests_per_minute": 1_000_000,
    "max_entries": 1_000_000_000_000,
    "max_bytes": 1_000_000_000_000_000,
    "questions_per_day": 1_000_000,
}
WRONG_A_MINUTE = 30  # requests with a wrong key from one address; more are refused with `Busy`
MINUTE = 60.0
DAY = 86_400
_REMEMBERED = 10_000  # names of which the last use is known
_UNITS = {"bytes": ';qu="content-bytes"'}  # units other than requests, by the name of the quota
_NOTHING = StoreSize()
_FRESH = 60.0  # seconds for which a whole count is used
_AGAIN = 1.0  # seconds between two whole counts, if a request would be refused
_SHARE = 50  # a whole count takes at most one part in so many of the time
_MOST_COUNTED = 1_000  # sets of namespaces whose counts are remembered
_DAYS = 4  # days whose questions are remembered, so that a clock that jumps to another day and back forgets none
_LOCK_SECONDS = 10.0
_ROOM_SECONDS = 10.0  # for which a request waits for earlier ones, if its room depends on what they store
_VERSION = 1
_COUNTING = "another process is counting a question; try again in a moment"


class Limits(NamedTuple):
    """The limits of a key; 0: no limit. Each server process accepts `requests_per_minute`; the others hold for all
    processes together."""

    requests_per_minute: int = 0
    max_entries: int = 0
    max_bytes: int = 0
    questions_per_day: int = 0


NO_LIMITS = Limits()


class Quota(NamedTuple):
    """What a key may use of a limit, what is left, and the seconds until all is left again. `window` is the time in
    seconds for which the limit holds. A limit of what is stored has no window, and waiting does not help: both are 0.
    """

    limit: int
    left: int
    seconds: int
    window: int = int(MINUTE)


def quota_headers(quotas: Mapping[str, Quota]) -> dict[str, str]:
    """Return the headers RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers) for quotas by name."""
    if not quotas:
        return {}
    policies = (
        f'"{name}";q={quota.limit}{f";w={quota.window}" if quota.window else ""}{_UNITS.get(name, "")}'
        for name, quota in quotas.items()
    )
    states = (
        f'"{name}";r={quota.left}{f";t={quota.seconds}" if quota.window else ""}' for name, quota in quotas.items()
    )
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}


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


class Rates:
    """Counts events by name, as a token bucket: each name has `limit` tokens, an event takes one, and they grow back
    in a minute. The names used longest ago are forgotten. Each process counts for itself. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> (tokens spent, at this time)

    def take(self, name: str, limit: int) -> tuple[Quota, float]:
        """Take a token. Return what is left, and the seconds until a token is free: 0 if this one was."""
        with self._lock:
            now = self._clock()
            spent, at = self._spent.pop(name, (0.0, now))
            spent = min(limit, max(0.0, spent - (now - at) * limit / MINUTE))  # the limit may have been lowered
            wait = max(0.0, (spent + 1 - limit) * MINUTE / limit)
            if not wait:
                spent += 1
            self._spent[name] = spent, now
            if len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
        return Quota(limit, int(limit - spent), round(spent * MINUTE / limit)), wait


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
                    self._write(dict([*days.items(), (day, counts)][-_DAYS:]))  # the day of the last question is last
        except Timeout:
            raise Busy("questions_per_day", _COUNTING) from None
        return _day_quota(limit, used, now), allowed

    def today(self) -> date:
        """Return the day of a question that is asked now."""
        return self._clock().date()

    def give_back(self, key_id: str, limit: int, day: date) -> Quota:
        """Subtract a question that was counted on this day, and return what is left today."""
        try:
            with self._place.locked(_LOCK_SECONDS):
                days = self._read()
                counts = days.get(day.isoformat(), {})
                if counts.get(key_id):
                    counts[key_id] -= 1
                    self._write(days)
        except Timeout:
            raise Busy("questions_per_day", _COUNTING) from None
        return self.quota(key_id, limit)

    def _write(self, days: dict[str, dict[str, int]]) -> None:
        self._place.write(json.dumps({"version": _VERSION, "days": days}).encode())

    def _read(self) -> dict[str, dict[str, int]]:
        """Return day (ISO 8601) -> key id -> number of questions. Without a file, nothing was counted."""
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


class TakenQuestion:
    """A question that `counts` has counted today for the key of `allowance`, or None if it was not counted. In a `with`
    block, an error gives the question back."""

    def __init__(self, counts: DayCounts, allowance: Allowance | None) -> None:
        self._counts, self._allowance, self._day = counts, allowance, counts.today()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.give_back()

    def give_back(self) -> None:
        """Subtract the question, because no model has answered it."""
        if allowance := self._allowance:
            limit = allowance.limits.questions_per_day
            with suppress(StoreError, Busy):  # then the question stays counted
                allowance.quotas["questions"] = self._counts.give_back(allowance.key_id, limit, self._day)


class KeyLimits:
    """Checks the limits of keys against a memory. `questions` counts the questions that `model` answers. If it is
    None, no question is counted. Thread-safe."""

    def __init__(self, store: MemoryBackend, questions: DayCounts, model: Lazy[LanguageModel | None]) -> None:
        self._store = store
        self._questions = questions
        self._model = model
        self._counted: dict[tuple[str, ...], _Counted] = {}
        self._lock = threading.Lock()
        self._reserved: list[_Reservation] = []  # of the requests in progress, in their order
        self._ended = threading.Condition(self._lock)  # notified when a reservation ends

    def take_question(self, allowance: Allowance | None) -> TakenQuestion:
        """Count a question that a language model is going to answer. If the model fails, the caller gives the question
        back. Without a model, nothing is counted. Raises `Busy` if the key has asked as many today as it may; see also
        `DayCounts`."""
        if allowance is None or not (limit := allowance.limits.questions_per_day) or self._model.get() is None:
            return TakenQuestion(self._questions, None)
        question = TakenQuestion(self._questions, allowance)
        quota, allowed = self._questions.take(allowance.key_id, limit)
        allowance.quotas["questions"] = quota
        if not allowed:
            message = f"this key may ask a language model {limit} questions a day; wait until midnight UTC"
            raise Busy("questions_per_day", message, quota.seconds)
        return question

    @contextmanager
    def reserve(self, allowance: Allowance | None, incoming: int = 0, entries: int = 1) -> Iterator[None]:
        """Reserve room for `entries` new entries and `incoming` bytes until the end of the `with` block, which stores
        them. What other requests of this process have reserved earlier counts as stored. A request for which there is
        room only if those store nothing waits until they end. At the end, the quotas say what is left. Raises the
        errors of `require_room`, and `Busy` if the earlier requests take too long."""
        if not _is_limited(allowance):
            yield
            return
        own = _Reservation(allowance.namespaces, entries, incoming)
        with self._lock:
            earlier = [each for each in self._reserved if each.shares(own)]
            self._reserved.append(own)
        try:
            self._wait_for_room(allowance, own, earlier)
            yield
        finally:
            with self._lock:
                self._reserved = [each for each in self._reserved if each is not own]
                self._ended.notify_all()
            with suppress(StoreError):
                _note_left(allowance, self._size(allowance.namespaces, lambda size: True))

    def _wait_for_room(self, allowance: Allowance, own: _Reservation, earlier: Sequence[_Reservation]) -> None:
        """Wait until there is room for `own`, even if the `earlier` requests store what they have reserved. Raises
        `KeyFull` if there is no room without them either, and `Busy` if they do not end in time."""
        until = time.monotonic() + _ROOM_SECONDS
        while True:
            with self._lock:  # before the size is read, so that it contains what the others have stored
                earlier = [each for each in earlier if each in self._reserved]
            size = self.require_room(allowance, own.bytes, own.entries)
            reserved = StoreSize(sum(each.entries for each in earlier), sum(each.bytes for each in earlier))
            limit = _exceeded(allowance.limits, size, own.entries, own.bytes, reserved)
            if not limit:
                return
            if not self._wait_for_one_to_end(earlier, until - time.monotonic()):
                raise Busy(limit, "other requests are storing what may fill this key; try again in a moment")

    def _wait_for_one_to_end(self, reservations: Sequence[_Reservation], seconds: float) -> bool:
        """Wait until one of the reservations ends. Return whether one has ended."""
        with self._ended:
            return self._ended.wait_for(
                lambda: any(each not in self._reserved for each in reservations), max(0.0, seconds)
            )

    def require_room(self, allowance: Allowance | None, incoming: int = 0, entries: int = 1) -> StoreSize:
        """Return what the namespaces of the key contain, if the key has limits of what is stored. Raises `KeyFull` if
        they contain as many bytes as the key may store, or if `incoming`, the bytes of the request, or its number of
        new `entries` does not fit."""
        if not _is_limited(allowance):
            return StoreSize()
        limits = allowance.limits
        size = self._size(allowance.namespaces, lambda size: not _exceeded(limits, size, entries, incoming))
        _note_left(allowance, size)
        limit = _exceeded(limits, size, entries, incoming)
        if not limit:
            return size
        most, used, more = {
            "max_entries": (limits.max_entries, size.entries, entries),
            "max_bytes": (limits.max_bytes, size.bytes, incoming),
        }[limit]
        reason = f"{most} {limit.removeprefix('max_')}, and its namespaces contain {used}"
        if used < most:
            reason += f"; the request has {more}"
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


def _is_limited(allowance: Allowance | None) -> TypeGuard[Allowance]:
    return allowance is not None and bool(allowance.limits.max_entries or allowance.limits.max_bytes)


def _exceeded(limits: Limits, size: StoreSize, entries: int, incoming: int, taken: StoreSize = _NOTHING) -> str:
    """Return the name of the limit that new entries and bytes would exceed besides the size and what is `taken`, or
    "". Full bytes are exceeded also by a request whose size is not known."""
    if limits.max_entries and entries and size.entries + taken.entries + entries > limits.max_entries:
        return "max_entries"
    if limits.max_bytes and size.bytes + taken.bytes + max(1, incoming) > limits.max_bytes:
        return "max_bytes"
    return ""


def _note_left(allowance: Allowance, size: StoreSize) -> None:
    limits = allowance.limits
    for name, most, used in (("entries", limits.max_entries, size.entries), ("bytes", limits.max_bytes, size.bytes)):
        if most:
            allowance.quotas[name] = Quota(most, max(0, most - used), 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Reservation:
    """The entries and bytes that a request is about to store in some of these namespaces (none: all)."""

    namespaces: tuple[str, ...]
    entries: int
    bytes: int

    def shares(self, other: _Reservation) -> bool:
        """Return whether both may store in the same namespace."""
        mine, others = self.namespaces, other.namespaces
        return not mine or not others or not set(mine).isdisjoint(others)


class _Counted:
    """The last count of some namespaces."""

    size = StoreSize()
    states: Sequence[tuple[int, int]] = ()  # of the store at the last whole count
    at = -math.inf  # monotonic time of the last whole count
    seconds = 0.0  # that it took

    def __init__(self) -> None:
        self.counting = threading.Lock()
