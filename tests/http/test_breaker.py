"""A server that did not answer is left alone, by a clock that the test turns."""

from __future__ import annotations

import threading

from agentformer.http.guarded import Breaker


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
    assert breaker.blocked()
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
