"""Validation of incoming MCP messages, and the grant of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.mcp_server.server import intersection
from agentformer.mcp_server.stdio import line_error, needs_response


def test_an_invalid_line_has_an_error_with_its_id_if_one_can_be_read() -> None:
    lines: list[tuple[bytes, int, int | str | None]] = [
        (b"no JSON", -32700, None),
        (b"\xff\xfe\x00", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"[]", -32600, None),
        (b"null", -32600, None),
        (b'[{"jsonrpc": "2.0", "id": 7, "method": "ping"}]', -32600, None),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, 7),
        (b'{"id": "seven", "method": "ping"}', -32600, "seven"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', -32600, 7),
        (b'{"jsonrpc": "2.0", "id": 7}', -32600, 7),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": []}', -32602, 7),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 7, "result": []}', -32600, None),  # an id that is the server's, not the client's
        (b'{"params": {"id": 1, "x": %s}, "id": 7}' % (b"[" * 300 + b"]" * 300), -32700, 7),
        (b'{"id": 7, "params": {"x": %s}}' % (b"9" * 5000), -32700, 7),
        (b'{"id": %s, "params": {}}' % (b"9" * 5000), -32700, None),
        (b'{"params": {"x": "\\ud800", "y": "\\"id\\": 2"}, "id": "a\\u00e5"}', -32700, "a\u00e5"),
        (b'{"id": "\\ud800", "params": {}}', -32700, None),
    ]
    for line, code, message_id in lines:
        error = line_error(line.decode("utf-8", "replace"))
        assert error is not None and needs_response(error), line[:80]
        assert (error.error.code, error.id) == (code, message_id), line[:80]


def test_a_valid_message_has_no_error() -> None:
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 7, "method": "ping"},
        {"jsonrpc": "2.0", "id": "", "method": "ping", "params": {}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 7, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}},
    ]
    for message in messages:
        assert line_error(json.dumps(message)) is None


def test_an_invalid_notification_has_no_response() -> None:
    error = line_error('{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": []}')
    assert error is not None and not needs_response(error)


def test_the_intersection_of_two_grants_allows_what_both_allow() -> None:
    key = Grant(frozenset({"read", "write"}), ("work", "home"), frozenset({"rag_upload"}), "k1")
    server = Grant(frozenset({"read"}), ("work",), frozenset({"memory_audit"}))
    assert intersection(key, server) == Grant(
        frozenset({"read"}), ("work",), frozenset({"rag_upload", "memory_audit"}), "k1"
    )
    assert intersection(EVERYTHING, server).namespaces == ("work",)
    assert intersection(key, EVERYTHING) == key
    assert not intersection(key, Grant(frozenset({"read"}), ("elsewhere",))).rights
