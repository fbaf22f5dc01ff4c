"""Retry decisions, deadlines and the size limit, by a clock that the test sets."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentformer.http import retry_policy as policy
from agentformer.http.retry_policy import Attempts, OverLimit, Policy, is_overflow, is_temporary


class Clock:
    """A clock that advances when the code under test sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @staticmethod
    def time() -> float:
        return time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(policy, "time", clock)
    monkeypatch.setattr(policy.random, "uniform", lambda low, high: 1.0)
    return clock


def test_temporary_statuses_are_those_that_may_succeed_later() -> None:
    statuses = [200, 302, 400, 401, 403, 404, 407, 408, 409, 410, 413, 428, 429, 430, 499, 500, 501, 502, 503, 504, 529]
    assert [s for s in statuses if is_temporary(s)] == [408, 409, 429, 500, 502, 503, 504, 529]


def test_an_overflow_is_recognized_except_in_a_rate_limit() -> None:
    messages = [
        "This model's maximum context length is 8192 tokens",
        "the input length exceeds the context length",
        "request (3020 tokens) exceeds the available context size",
        "input (1779 tokens) is too large to process. increase the physical batch size",
        "prompt is too long: 210000 tokens",
        "inputs must have less than 512 tokens",
        "max 300000 tokens per request",
    ]
    assert all(is_overflow(400, message) and is_overflow(500, message) for message in messages)
    assert not any(is_overflow(429, message) for message in messages)
    assert is_overflow(413, "") and not is_overflow(400, "model not found")


def test_retries_are_counted_and_wait_twice_as_long_each_time(clock: Clock) -> None:
    attempts = Attempts(Policy(60, retries=3, backoff=0.5))
    assert [attempts.retry(503) for _ in range(4)] == [True, True, True, False]
    assert clock.slept == [0.5, 1.0, 2.0]
    assert not Attempts(Policy(60, retries=0)).retry()
    default = Attempts(Policy())
    assert [default.retry() for _ in range(3)] == [True, True, False]


def test_a_permanent_error_is_not_retried(clock: Clock) -> None:
    for status, message in ((400, ""), (501, ""), (500, "input is too long"), (413, ""), (200, "")):
        assert not Attempts(Policy(60)).retry(status, {}, message)
    assert Attempts(Policy(60)).retry(429, {}, "too many tokens per min")
    assert clock.slept == [0.5]


def test_the_wait_is_what_the_server_asks_for_up_to_30_seconds(clock: Clock) -> None:
    past = email.utils.formatdate(time.time() - 3600, usegmt=True)
    future = email.utils.formatdate(time.time() + 20, usegmt=True)
    headers: list[tuple[dict[str, str], Callable[[float], bool]]] = [
        ({"retry-after": "0"}, lambda wait: wait == 0),
        ({"retry-after": "30"}, lambda wait: wait == 30),
        ({"retry-after": "9", "retry-after-ms": "1500"}, lambda wait: wait == 1.5),
        ({"retry-after": past}, lambda wait: wait == 0),
        ({"retry-after": future}, lambda wait: 15 < wait <= 20),
        *(({"retry-after": value}, lambda wait: wait == 0.5) for value in ("soon", "nan", "-1", "")),
    ]
    for fields, expected in headers:
        assert Attempts(Policy(60)).retry(503, fields)
        assert expected(clock.slept[-1]), (fields, clock.slept[-1])
    for value in ("30.1", "86400", "inf"):
        assert not Attempts(Policy(600)).retry(503, {"retry-after": value})


def test_a_retry_starts_within_twice_the_timeout(clock: Clock) -> None:
    attempts = Attempts(Policy(2, 300, retries=9, backoff=1.0))
    assert attempts.retry()
    clock.now += 0.9
    assert attempts.retry(503, {"retry-after": "2"})
    assert not attempts.retry(503, {"retry-after": "0.2"})
    short = Attempts(Policy(10, 1, retries=9))
    assert not short.retry(503, {"retry-after": "11"}) and short.retry(503, {"retry-after": "10.9"})
    assert not short.retry(503, {"retry-after": "0.06"})  # .04 s would be left for a response


def test_the_last_attempt_has_the_time_that_is_left(clock: Clock) -> None:
    attempts = Attempts(Policy(2))
    assert attempts.limit().left() == pytest.approx(2)
    clock.now += 3
    limit = attempts.limit()
    assert limit.left() == pytest.approx(1)
    clock.now += 1
    with pytest.raises(OverLimit, match="did not finish its response within 1 s") as caught:
        limit.left()
    assert caught.value.exceeded == "seconds"


def test_a_response_has_a_number_of_bytes(clock: Clock) -> None:
    assert Policy().max_bytes == 64 * 2**20
    limit = Attempts(Policy(2, max_bytes=10)).limit()
    assert limit.read(lambda wait: b"x" * 4) + limit.read(lambda wait: b"x" * 6) == b"x" * 10
    with pytest.raises(OverLimit, match="more than 10 bytes") as caught:
        limit.read(lambda wait: b"x")
    assert caught.value.exceeded == ""


def test_silence_and_the_end_of_the_time_are_different_limits(clock: Clock) -> None:
    waits: list[float] = []

    def silent(wait: float) -> Any:
        waits.append(wait)
        raise TimeoutError

    limit = Attempts(Policy(2, 5)).limit()
    with pytest.raises(OverLimit, match="sent nothing for 2 s") as caught:
        limit.read(silent)
    assert caught.value.exceeded == "timeout" and caught.value.__cause__ is None
    with pytest.raises(OverLimit, match=r"sent nothing for 0\.5 s"):
        limit.read(silent, 0.5)
    clock.now += 4
    with pytest.raises(OverLimit, match="did not finish its response within 5 s"):
        limit.read(silent)
    assert waits == [2, 0.5, 1]
    with pytest.raises(ConnectionResetError):
        limit.read(lambda wait: (_ for _ in ()).throw(ConnectionResetError()))
