"""Streams that are pulled in a thread: order, silence, errors, and readers that leave."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api import response
from agentformer.api.response import in_thread

BOUND = 120.0


def numbers(count: int, ended: threading.Event) -> Generator[int, None, None]:
    try:
        yield from range(count)
    finally:
        ended.set()


def test_the_items_come_in_their_order_and_the_generator_is_closed() -> None:
    ended = threading.Event()
    assert list(in_thread(numbers(200, ended), BOUND)) == list(range(200))
    assert ended.wait(BOUND)


def test_silence_is_told_until_the_next_item_comes() -> None:
    go = threading.Event()

    def slow() -> Generator[str, None, None]:
        go.wait(BOUND)
        yield "at last"

    with closing(in_thread(slow(), 0.01)) as coming:
        assert [next(coming), next(coming)] == [None, None]
        go.set()
        assert next(item for item in coming if item) == "at last"


def test_an_error_is_raised_where_the_items_are_read_and_after_them() -> None:
    def broken() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no more")

    coming = in_thread(broken(), BOUND)
    assert next(coming) == 1
    with pytest.raises(ValueError, match="no more"):
        next(coming)


def test_a_reader_that_leaves_does_not_wait_and_the_generator_ends_with_its_next_item() -> None:
    go, ended = threading.Event(), threading.Event()

    def stuck() -> Generator[int, None, None]:
        try:
            yield 1
            go.wait(BOUND)
            yield 2
            raise AssertionError("nobody reads this")
        finally:
            ended.set()

    coming = in_thread(stuck(), 0.01)
    assert (next(coming), next(coming)) == (1, None)
    coming.close()
    assert not ended.is_set()
    go.set()
    assert ended.wait(BOUND)


def test_a_slow_reader_slows_the_generator_down() -> None:
    made: list[int] = []
    third = threading.Event()

    def eager() -> Generator[int, None, None]:
        for n in range(1000):
            made.append(n)
            if n == 2:
                third.set()
            yield n

    with closing(in_thread(eager(), BOUND)) as coming:
        assert next(coming) == 0
        assert third.wait(BOUND)  # one waits to be read, and one for its place
        assert len(made) == 3


def streaming() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "agentformer-stream"}


def test_over_the_most_threads_the_items_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in streaming():  # of earlier tests: at its end one would give back a place in the smaller room
        thread.join(BOUND)
    monkeypatch.setattr(response, "_threads", threading.BoundedSemaphore(1))
    ended = threading.Event()

    def first() -> Iterator[int]:
        yield 1
        ended.wait(BOUND)

    held = in_thread((n for n in first()), BOUND)
    assert next(held) == 1
    threads = streaming()
    other = in_thread(numbers(3, ended), BOUND)
    assert next(other) == 0
    assert streaming() == threads  # none was started
    assert list(other) == [1, 2]
    assert list(held) == []
    ended.clear()
    assert list(in_thread(numbers(3, ended), BOUND)) == [0, 1, 2]  # the room is given back
