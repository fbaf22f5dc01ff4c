"""Places for requests that may hold a thread for long: each is given back once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

flask = pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api import concurrency  # noqa: E402
from agentformer.api.concurrency import ThreadLimit, server_threads  # noqa: E402
from agentformer.errors import Busy  # noqa: E402
from agentformer.servers.slow_clients import MAX_SLOW_READERS  # noqa: E402
from agentformer.settings import Settings  # noqa: E402
from tests.edges.mounted import mounted  # noqa: E402


def test_a_server_has_a_thread_more_than_slow_requests_can_hold() -> None:
    slow = concurrency.MAX_BODIES + MAX_SLOW_READERS + concurrency.MAX_WAITING + concurrency.MAX_WAITING_UPLOADS
    for threads, running in ((1, 1), (2, 1), (8, 7)):
        assert server_threads(Settings(threads=threads, max_uploads=3)) == running + 3 + slow + 1


def test_a_stream_that_is_closed_twice_gives_its_place_back_once() -> None:
    limit = ThreadLimit(1, wait_seconds=0.01)
    for _ in range(3):
        response = limit.run(lambda: flask.Response(iter(["a", "b"])))
        with pytest.raises(Busy):
            limit.reserve()  # the stream has the only place
        response.close()
        response.close()
        held = limit.reserve()
        response.close()  # of one that has left, while another is inside
        with pytest.raises(Busy):
            limit.reserve()
        held.close()
        held.close()


def test_a_view_that_fails_or_does_not_stream_gives_its_place_back() -> None:
    limit = ThreadLimit(1, wait_seconds=0.01)
    with pytest.raises(ZeroDivisionError):
        limit.run(lambda: 1 / 0)
    assert limit.run(lambda: "whole") == "whole"
    with limit.reserve(), pytest.raises(Busy):
        limit.reserve()
    limit.reserve().close()


def test_requests_over_the_limit_wait_in_the_order_in_which_they_came() -> None:
    limit = ThreadLimit(1, wait_seconds=30)
    held = limit.reserve()
    order: list[int] = []

    def request(number: int) -> None:
        with limit.reserve():
            order.append(number)

    threads = [threading.Thread(target=request, args=(number,)) for number in range(8)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        while len(limit._waiting) < count:
            time.sleep(0.001)
    assert order == []
    held.close()
    for thread in threads:
        thread.join(30)
    assert order == list(range(8))


def test_a_request_that_waits_in_vain_leaves_the_queue() -> None:
    limit = ThreadLimit(1, wait_seconds=0.01)
    with limit.reserve():
        for _ in range(3):
            with pytest.raises(Busy, match="Retry after 2 s"):
                limit.reserve()
    limit.reserve().close()


def test_only_so_many_requests_wait() -> None:
    """The server has a thread for each of them, and one more for requests that need no model."""
    limit = ThreadLimit(1, wait_seconds=30, max_waiting=2, limit="max_uploads", reason="an upload is in progress")
    held = limit.reserve()
    threads = [threading.Thread(target=lambda: limit.reserve().close()) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(limit._waiting) < 2:
        time.sleep(0.001)
    with pytest.raises(Busy, match=r"Server busy: an upload is in progress\.") as refused:
        limit.reserve()
    assert (refused.value.limit, refused.value.retry_after) == ("max_uploads", 2)
    held.close()
    for thread in threads:
        thread.join(30)
    limit.reserve().close()


@pytest.mark.parametrize(("path", "status"), [("/search", 408), ("", 201)])
def test_a_search_of_a_client_that_has_left_is_dropped_and_an_entry_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    with mounted(tmp_path) as host:
        searched: list[str] = []
        monkeypatch.setattr(host.af.memory, "search", lambda **arguments: searched.append("search"))
        left = {"waitress.client_disconnected": lambda: True}
        body = {"text": "boat"} if path else {"content": "A boat."}
        answer = host.post(f"/api/memory{path}", body, environ_overrides=left)
        assert (answer.status_code, searched) == (status, [])
