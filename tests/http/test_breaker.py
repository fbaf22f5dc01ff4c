"""Calls of a provider: the pause after a failure, by a clock that the test sets, and the counts of the calls."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from agentformer.errors import InvalidInput, MissingExtra, RerankerUnavailable
from agentformer.http import circuit_breaker
from agentformer.http.circuit_breaker import Breaker, Guarded, Usage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_calls_pass_until_one_fails_and_after_one_succeeds() -> None:
    breaker = Breaker(30, clock=Clock())
    assert breaker.blocked() == ""
    breaker.failed("no answer")
    assert breaker.blocked() == "no answer; next attempt in 30 s"
    breaker.succeeded()
    assert breaker.blocked() == ""


def test_after_the_wait_one_caller_tries_and_the_others_wait_again() -> None:
    clock = Clock()
    breaker = Breaker(30, clock=clock)
    breaker.failed("no answer")
    clock.now += 29.9
    assert breaker.blocked() == "no answer; next attempt in 1 s"
    clock.now += 0.2
    assert breaker.blocked() == ""
    assert breaker.blocked() == "no answer; next attempt in 30 s"


def test_a_trial_that_never_tells_does_not_close_the_way_for_ever() -> None:
    clock = Clock()
    breaker = Breaker(30, clock=clock)
    breaker.failed("no answer")
    for _ in range(3):
        clock.now += 30
        assert breaker.blocked() == ""
        assert breaker.blocked()


def test_the_wait_doubles_up_to_the_longest_and_starts_anew_after_a_success() -> None:
    clock = Clock()
    breaker = Breaker(10, longest=35, clock=clock)
    waits = []
    for _ in range(4):
        breaker.failed("no")
        waits.append(breaker.blocked())
        clock.now += 35
        assert breaker.blocked() == ""
    assert [wait.split(" in ")[1] for wait in waits] == ["10 s", "20 s", "35 s", "35 s"]
    breaker.succeeded()
    breaker.failed("no")
    assert breaker.blocked().endswith("in 10 s")


def test_calls_that_fail_together_are_one_outage() -> None:
    clock = Clock()
    breaker = Breaker(10, clock=clock)
    for late in range(8):
        clock.now += late / 10
        breaker.failed(f"no {late}")
    assert breaker.blocked() == "no 0; next attempt in 7 s"
    clock.now += 8
    assert breaker.blocked() == ""
    for _ in range(8):
        breaker.failed("no")
    assert breaker.blocked() == "no; next attempt in 20 s"


def test_a_reset_lets_the_next_caller_through_and_keeps_what_was_learnt() -> None:
    clock = Clock()
    breaker = Breaker(10, clock=clock)
    breaker.failed("no")
    breaker.reset()
    assert breaker.blocked() == ""
    assert breaker.blocked().startswith("no;")
    breaker.failed("still no")
    assert breaker.blocked() == "still no; next attempt in 20 s"


def test_of_many_threads_one_tries() -> None:
    clock = Clock()
    breaker = Breaker(10, clock=clock)
    breaker.failed("no")
    clock.now += 11
    start = threading.Barrier(8)
    through: list[bool] = []

    def ask() -> None:
        start.wait(10)
        through.append(breaker.blocked() == "")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(through) == [False] * 7 + [True]


def test_calls_errors_tokens_and_times_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 6.23456, 10.0, 10.1])
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    usage = Usage()
    counts = dict.fromkeys(["calls", "tokens_in", "tokens_out", "seconds", "mean_ms", "slowest_ms"], 0)
    assert usage.snapshot() == {**counts, "errors": {}, "last_error": ""}
    with usage.call("test"):
        usage.tokens(5, 2)
        usage.tokens(3)
    with pytest.raises(ValueError, match="no"), usage.call("test"):
        raise ValueError("no")
    counts = {"calls": 2, "tokens_in": 8, "tokens_out": 2, "seconds": 1.335, "mean_ms": 667.3, "slowest_ms": 1234.6}
    assert usage.snapshot() == {**counts, "errors": {"ValueError": 1}, "last_error": "no"}


class Provider(Guarded[str]):
    unavailable = RerankerUnavailable
    name = "test"


def test_only_a_failure_of_the_provider_pauses_its_calls() -> None:
    usage = Usage()
    provider = Provider(lambda: "loaded", Breaker(1000), usage)
    assert provider.usage is usage and provider.provider() == "loaded"
    for error, raised in ((InvalidInput("text", "is wrong"), InvalidInput), (OSError("down"), RerankerUnavailable)):
        with pytest.raises(raised), provider.call() as loaded:
            assert loaded == "loaded"
            raise error
    with (
        pytest.raises(RerankerUnavailable, match=r"test failed \(OSError: down\); next attempt in 1000 s"),
        provider.call(),
    ):
        pass
    provider.retry_now()
    with provider.call() as loaded:
        assert loaded == "loaded"


def test_loading_that_fails_is_paused_and_then_tried_again() -> None:
    loads: list[Exception | None] = [MissingExtra("sbert", "this"), None]

    def load() -> str:
        if error := loads.pop(0):
            raise error
        return "loaded"

    provider = Provider(load, Breaker(1000))
    for _ in range(2):
        with pytest.raises(RerankerUnavailable, match="sbert"):
            provider.provider()
    assert len(loads) == 1
    provider.retry_now()
    assert [provider.provider(), provider.provider()] == ["loaded", "loaded"]
    assert provider.usage.snapshot()["errors"] == {"RerankerUnavailable": 1}
