"""Servers of a test's own, and models that ask them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.llms.hostile import Answer, Hostile, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers as it is told; all end with the test."""
    servers: list[Hostile] = []

    def start(answer: Answer) -> Hostile:
        servers.append(Hostile(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
