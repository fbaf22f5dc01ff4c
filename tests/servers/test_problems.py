"""Problem documents of errors: status, type, members and headers."""

from __future__ import annotations

import json

from agentformer import errors
from agentformer.errors import AgentFormerError, Busy, InvalidInput, TooLarge
from agentformer.servers.problems import PROBLEM, Problem, openai_error, problem_json, problem_of

STATUSES: list[tuple[AgentFormerError, int, str]] = [
    (InvalidInput("top_k", "is wrong"), 400, "invalid-input"),
    (errors.Unauthenticated("x"), 401, "unauthenticated"),
    (errors.Forbidden("x"), 403, "forbidden"),
    (errors.FetchRefused("x"), 403, "fetch-refused"),
    (errors.NotFound("x"), 404, "not-found"),
    (errors.Conflict("x"), 409, "conflict"),
    (errors.SpaceMismatch("x"), 409, "space-mismatch"),
    (TooLarge("max_file_bytes", "x"), 413, "too-large"),
    (errors.EncryptedDocument("x"), 422, "unreadable-document"),
    (errors.FetchFailed("x"), 422, "fetch-failed"),
    (Busy("threads", "x", 7), 429, "busy"),
    (errors.StoreDamaged("/secret"), 500, "store-damaged"),
    (errors.StoreError("/secret"), 500, "store-unusable"),
    (errors.LanguageModelError("/secret"), 500, "internal"),
    (errors.MissingExtra("mcp", "this"), 501, "missing-extra"),
    (errors.EmbedderUnavailable("x"), 503, "embedder-unavailable"),
    (errors.StoreBusy("/secret"), 503, "store-busy"),
    (errors.StoreReadOnly("/secret"), 503, "store-read-only"),
    (errors.StoreFull("/secret"), 507, "store-full"),
]


def test_each_error_has_its_status_and_type() -> None:
    for error, status, kind in STATUSES:
        problem = problem_of(error)
        assert (problem.status, problem.document["status"]) == (status, status)
        assert problem.document["type"] == f"urn:agentformer:problem:{kind}"
        assert problem.document["title"] != kind
        hidden = isinstance(error, errors.StoreError) or status == 500  # these messages may name files of the server
        assert problem.document.get("detail") == (None if hidden else str(error)), kind
        assert "secret" not in problem.as_json()


def test_members_and_headers_depend_on_the_error() -> None:
    assert problem_of(InvalidInput("top_k", "is wrong")).document["field"] == "top_k"
    assert problem_of(TooLarge("max_file_bytes", "x")).document["limit"] == "max_file_bytes"
    busy = problem_of(Busy("threads", "x", 7))
    assert (busy.document["limit"], busy.headers) == ("threads", {"Retry-After": "7"})
    assert problem_of(errors.StoreBusy("x")).headers == {"Retry-After": "5"}
    assert problem_of(errors.Unauthenticated("x")).headers == {"WWW-Authenticate": 'Bearer realm="agentformer"'}
    assert "field" not in problem_of(errors.NotFound("x")).document and problem_of(errors.NotFound("x")).headers == {}


def test_further_members_may_replace_the_title() -> None:
    assert problem_json(412, "precondition-failed", "old", title="Version conflict", version=3) == {
        "type": "urn:agentformer:problem:precondition-failed",
        "title": "Version conflict",
        "status": 412,
        "version": 3,
        "detail": "old",
    }
    assert "detail" not in problem_json(404, "not-found")


def test_a_problem_in_the_format_of_openai_says_whose_mistake_it_is() -> None:
    for error, kind, code in [
        (InvalidInput("top_k", "is wrong"), "invalid_request_error", "invalid_input"),
        (errors.Unauthenticated("x"), "authentication_error", "unauthenticated"),
        (Busy("threads", "x", 7), "rate_limit_error", "busy"),
        (errors.StoreDamaged("/secret"), "server_error", "store_damaged"),
        (errors.StoreBusy("/secret"), "server_error", "store_busy"),
    ]:
        shown = openai_error(problem_of(error))["error"]
        assert (shown["type"], shown["code"]) == (kind, code)
        assert shown["message"] and "secret" not in shown["message"]
        assert shown["param"] == ("top_k" if code == "invalid_input" else None)


def test_a_problem_as_http_is_a_complete_response() -> None:
    document = problem_json(408, "incomplete-request", "zu spät", title="Request Timeout")
    head, _, body = Problem(408, document, {"Retry-After": "2"}).as_http().partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert status == "HTTP/1.1 408 Request Timeout"
    assert headers == {
        "Connection": "close",
        "Content-Type": PROBLEM,
        "Content-Length": str(len(body)),
        "Retry-After": "2",
    }
    assert json.loads(body) == document
