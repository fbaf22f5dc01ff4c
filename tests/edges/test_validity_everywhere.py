"""What holds now and what held then, through the tools (Python, HTTP, MCP), the HTTP API and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.settings import load_settings
from tests.edges.conftest import Invoke
from tests.edges.doors import DOORS, Door

FORMER, PRESENT = "The harbour office opens at nine.", "The harbour office opens at ten."
THEN, CHANGE, LATER = "2020-06-01T00:00:00+00:00", "2024-01-01T00:00:00+00:00", "2120-01-01T00:00:00+00:00"
QUESTION = "When does the harbour office open?"
PARAMS = [pytest.param(name, marks=[pytest.mark.process] if name.startswith("mcp") else []) for name in DOORS]


@pytest.fixture(params=PARAMS)
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    with ExitStack() as stack:
        yield DOORS[request.param](tmp_path, stack)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    app = create_app(load_settings({**where, "embedder": "hashing", "clean_every": 0}))
    yield app.test_client()
    close_app(app)


def test_a_tool_stores_changes_and_searches_what_holds(door: Door) -> None:
    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        told = door.call(tool, arguments, "owner")
        assert not told.failed, told.text
        return told.value

    former = call("memory_add", content=FORMER, valid_from=THEN, valid_to=CHANGE)["memory"]
    assert (former["valid_from"], former["valid_to"]) == (THEN, CHANGE)
    call("memory_add", content=PRESENT, valid_from=CHANGE)
    brief = call("memory_add", content="The harbour office is shut today.", expires_at=THEN)["memory"]
    for as_of, expected in ((None, [PRESENT]), (THEN, [FORMER]), (CHANGE, [PRESENT])):
        at = {} if as_of is None else {"as_of": as_of}
        assert [found["content"] for found in call("memory_search", query=QUESTION, **at)["memories"]] == expected
        answer = call("rag_query", question=QUESTION, **at)
        assert [passage["content"] for passage in answer["passages"]] == expected
    changed = call("memory_update", id=brief["id"], expires_at=LATER)["memory"]
    assert changed["expires_at"] == LATER
    assert len(call("memory_search", query=QUESTION)["memories"]) == 2
    wrong = door.call("memory_add", {"content": "x", "valid_from": LATER, "valid_to": THEN}, "owner")
    assert wrong.failed and wrong.text.startswith("valid_to: ")
    assert door.call("memory_search", {"query": "x", "as_of": "2020-06-01"}, "owner").text.startswith("as_of: ")


def test_http_stores_changes_and_reads_what_holds(client: Any) -> None:
    def post(path: str, **body: Any) -> Any:
        return client.post(f"/api/{path}", json=body)

    former = post("memory", content=FORMER, valid_from=THEN, valid_to=CHANGE).json
    assert (former["valid_from"], former["valid_to"], former["expires_at"]) == (THEN, CHANGE, None)
    present = post("memory", content=PRESENT, valid_from=CHANGE).json
    gone = post("memory", content="The harbour office is shut today.", expires_at=THEN).json
    for as_of, expected in ((None, PRESENT), (THEN, FORMER)):
        at = {} if as_of is None else {"as_of": as_of}
        hits = post("memory/search", text=QUESTION, **at).json["hits"]
        assert [hit["content"] for hit in hits] == [expected]
        assert post("memory/count", **at).json == {"count": 1}
        listed = client.get("/api/memory", query_string=at).json["entries"]
        assert [entry["content"] for entry in listed] == [expected]
        context = post("memory/context", task=QUESTION, **at).json
        assert expected in context["messages"][0]["content"]
        answer = post("rag/query", question=QUESTION, **at).json
        assert [citation["quote"] for citation in answer["citations"]] == [expected]
    changed = client.patch(f"/api/memory/{present['id']}", json={"valid_from": None, "valid_to": LATER}).json
    assert (changed["valid_from"], changed["valid_to"]) == (None, LATER)
    wrong = client.patch(f"/api/memory/{former['id']}", json={"valid_to": "2019-01-01T00:00:00Z"})
    assert (wrong.status_code, wrong.json["field"]) == (400, "valid_to")
    assert post("memory/search", text="x", as_of="today").json["field"] == "as_of"
    assert client.get("/api/memory", query_string={"as_of": "today"}).json["field"] == "as_of"
    assert post("memory/clean").json["expired"] == [gone["id"]]
    assert post("memory/restore", summary_id=gone["id"]).json["entries"][0]["expires_at"] is None


def test_commands_store_change_and_read_what_holds(run: Invoke, shown: Callable[..., Any]) -> None:
    former = shown("remember", FORMER, "--valid-from", THEN, "--valid-to", CHANGE)
    present = shown("remember", PRESENT, "--valid-from", CHANGE)
    gone = shown("remember", "The harbour office is shut today.", "--expires", THEN)
    for option, expected, other in (((), PRESENT, FORMER), (("--as-of", THEN), FORMER, PRESENT)):
        for command in (
            ("recall", QUESTION),
            ("search", QUESTION),
            ("memories",),
            ("context", QUESTION),
            ("ask", QUESTION),
        ):
            output = run(*command, *option).stdout
            assert expected in output and other not in output, command
    assert shown("update", former["id"], "--valid-to", "")["valid_to"] is None
    assert shown("supersede", former["id"], present["id"])["valid_to"] == CHANGE
    assert "superseded" in run("memories", "--archived").stdout and "expired" in run("memories", "--archived").stdout
    assert gone["id"] in run("clean").stdout
    assert run("restore", gone["id"]).exit_code == 0
    assert "shut today" in run("recall", QUESTION).stdout


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("remember", "x", "--valid-from", LATER, "--valid-to", THEN), "--valid-to"),
        (("remember", "x", "--expires", "tomorrow"), "--expires"),
        (("recall", "x", "--as-of", "2020-06-01"), "--as-of"),
        (("memories", "--as-of", "now"), "--as-of"),
        (("context", "x", "--as-of", "now"), "--as-of"),
    ],
)
def test_a_wrong_time_names_its_option(run: Invoke, arguments: tuple[str, ...], option: str) -> None:
    run("remember", "There is a memory.")
    result = run(*arguments)
    assert result.exit_code == 2 and f"{option}: " in result.stderr


def test_a_memory_that_does_not_hold_is_named_as_the_reason(run: Invoke) -> None:
    run("remember", FORMER, "--valid-to", CHANGE)
    assert "do not hold" in run("memories").stdout
    assert "do not hold now" in run("recall", QUESTION).stdout
