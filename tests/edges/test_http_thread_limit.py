"""Places for requests that may hold a thread for long: each is given back once."""

from __future__ import annotations

import pytest

flask = pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.operations import ThreadLimit  # noqa: E402
from agentformer.errors import Busy  # noqa: E402


def test_a_stream_that_is_closed_twice_gives_its_place_back_once() -> None:
    limit = ThreadLimit(1, wait_seconds=0.01)
    for _ in range(3):
        response = limit.run(lambda: flask.Response(iter(["a", "b"])))
        with pytest.raises(Busy):
            limit.held()  # the stream has the only place
        response.close()
        response.close()
        held = limit.held()
        response.close()  # of one that has left, while another is inside
        with pytest.raises(Busy):
            limit.held()
        held.close()
        held.close()


def test_a_view_that_fails_or_does_not_stream_gives_its_place_back() -> None:
    limit = ThreadLimit(1, wait_seconds=0.01)
    with pytest.raises(ZeroDivisionError):
        limit.run(lambda: 1 / 0)
    assert limit.run(lambda: "whole") == "whole"
    with limit.held(), pytest.raises(Busy):
        limit.held()
    limit.held().close()
