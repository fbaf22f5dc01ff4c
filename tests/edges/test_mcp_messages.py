"""Validation of incoming MCP messages, the limits of their size, and the grant of a request."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from agentformer.access.keys import KeyStore
from agentformer.mcp_server import stdio
from agentformer.mcp_server.http import AccessMiddleware
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


def test_a_line_with_too_many_values_is_refused_before_it_is_decoded() -> None:
    for values in (b"[" * 300_000, b"{}," * 300_000, b'"a":0,' * 300_000):
        error = line_error((b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"x": [%s' % values).decode())
        assert error is not None
        assert (error.error.code, error.id) == (-32600, 7)
        assert error.error.message.startswith("max_json_values")
    text = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"x": ",[{" * 300_000}})
    assert line_error(text) is None


def test_a_line_over_the_limit_is_refused_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_MESSAGE", 200_000)
    ours, theirs = os.pipe()
    pipes = stdio.StandardPipes.__new__(stdio.StandardPipes)
    pipes._in, pipes._buffer, pipes._first_line = ours, bytearray(), True
    valid = b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n'
    lines = b" " * 150_000 + b"\n" + b"x" * 900_000 + b"\n\n" + valid
    writer = threading.Thread(target=lambda: (stdio._write(theirs, lines), os.close(theirs)))
    writer.start()
    refused, read, end = pipes._read_and_check(), pipes._read_and_check(), pipes._read_and_check()
    writer.join()
    os.close(ours)
    assert refused is not None and refused[1] is not None
    assert refused[1].error.message == "a message may have at most 200000 bytes"
    assert len(refused[0]) < 200_000
    assert (read, end) == ((valid.decode(), None), None)


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


def answer(middleware: AccessMiddleware, pieces: list[bytes], declared: str = "", method: str = "POST") -> list[Any]:
    """Return the size of the body that reaches the application, or the status and the headers of the refusal. If there
    are no pieces, the client disconnects."""
    events = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    events = [*events[:-1], {**events[-1], "more_body": False}] if events else [{"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return events.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "size":
            sent.append(message["size"])
        elif message["type"] == "http.response.start":
            sent.extend((message["status"], dict(message["headers"])))

    headers = [(b"host", b"localhost"), *([(b"content-length", declared.encode())] if declared else [])]
    scope = {"type": "http", "method": method, "headers": headers, "client": ("127.0.0.1", 1)}
    asyncio.run(middleware(scope, receive, send))
    return sent


def test_bodies_are_accepted_up_to_each_limit(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "size", "size": len((await receive())["body"])})

    most, small = 100_000, 64 * 1024
    middleware = AccessMiddleware(app, KeyStore(tmp_path), max_bytes=most, origins=())
    cases: list[tuple[int, list[int], str, int]] = [  # bytes of other requests, sizes of the pieces, declared size
        (0, [most], "", most),
        (0, [most + 1], "", 413),
        (0, [most // 2, most // 2], "", most),
        (0, [most // 2, most // 2 + 1], "", 413),
        (0, [1], f"{most}", 1),
        (0, [1], f"{most + 1}", 413),
        (0, [1], "9" * 19, 413),
        (0, [1], "x", 1),
        (3 * most, [most], "", most),
        (4 * most, [small], "", small),
        (3 * most + 1, [most], "", 429),
        (4 * most, [small, 1], "", 429),
        (4 * most, [small + 1], "", 429),
    ]
    for others, sizes, declared, expected in cases:
        middleware._bytes_in_memory = others
        result = answer(middleware, [b" " * size for size in sizes], declared)
        assert result[0] == expected, (others, sizes, declared)
        assert middleware._bytes_in_memory == others, (others, sizes, declared)
    assert result[1][b"retry-after"] == b"5"
    middleware._bytes_in_memory = 0
    assert answer(middleware, []) == []
    assert answer(middleware, [b"1"], method="GET")[0] == 405
