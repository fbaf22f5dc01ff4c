"""Learning and profiles over HTTP, as tools through each door, and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

import agentformer
from agentformer.api.models import memory as models
from tests.edges.conftest import Invoke
from tests.edges.doors import DOORS, Door
from tests.edges.mounted import Mounted, grant, mounted, shaped

SAID = "Hi! I live in Turku. My sister Anna is a nurse. How are you?"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


@pytest.fixture(params=["python", "http", pytest.param("mcp-stdio", marks=pytest.mark.process)])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.memory.add_message("monday", "user", SAID, user_id="aino")
    with ExitStack() as stack:
        yield DOORS[request.param](tmp_path, stack)


def test_a_model_learns_and_reads_a_profile(door: Door) -> None:
    learnt = door.call("memory_learn", {}, "owner")
    assert [fact["text"] for fact in learnt["facts"]] == ["I live in Turku", "My sister Anna is a nurse"]
    profile = door.call("memory_profile", {"user_id": "aino"}, "owner")
    assert [group["name"] for group in profile["groups"]] == ["home", "people"]
    assert door.call("memory_learn", {}, "owner")["messages"] == 0
    assert "user_id: is missing" in door.call("memory_profile", {}, "owner").text
    assert door.call("memory_learn", {}, "reader").failed


def test_facts_are_learnt_listed_and_undone_over_http(host: Mounted) -> None:
    host.af.memory.add_message("monday", "user", SAID, user_id="aino", namespace="b")
    body: dict[str, Any] = {"namespace": "b"}
    dry = shaped(models.LearningReport, host.post("/api/memory/learn", {**body, "dry_run": True}))
    assert (len(dry["facts"]), dry["run"]) == (2, "")
    report = shaped(models.LearningReport, host.post("/api/memory/learn", body))
    assert [fact["quote"] for fact in report["facts"]] == ["I live in Turku", "My sister Anna is a nurse"]
    (run,) = shaped(models.LearningRuns, host.ask("GET", "/api/memory/learn?namespace=b"))["runs"]
    assert (run["id"], run["facts"], run["undone"]) == (report["run"], 2, False)
    profile = shaped(models.Profile, host.ask("GET", "/api/memory/profile?namespace=b&user_id=aino"))
    assert profile["groups"][0]["items"][0]["text"] == "I live in Turku"
    outsider = grant("admin", only=("a",))
    assert host.post("/api/memory/learn/undo", {"run": report["run"]}, outsider).status_code == 404
    undone = shaped(models.UndoneLearning, host.post("/api/memory/learn/undo", {"run": report["run"]}))
    assert sorted(undone["archived"]) == sorted(fact["id"] for fact in report["facts"])
    again = host.post("/api/memory/learn/undo", {"run": report["run"]})
    assert (again.status_code, again.json["type"]) == (409, "urn:agentformer:problem:conflict")
    assert host.ask("GET", "/api/memory/profile?namespace=b&user_id=aino").json["groups"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/memory/learn", {"messages": ["missing"]}, 404),
        ("POST", "/api/memory/learn", {"messages": "x"}, 400),
        ("POST", "/api/memory/learn", {"limit": 3}, 400),
        ("POST", "/api/memory/learn/undo", {"run": "missing"}, 404),
        ("GET", "/api/memory/profile", None, 400),
        ("GET", "/api/memory/profile?user_id=a&max_tokens=0", None, 400),
    ],
)
def test_a_wrong_request_is_told(host: Mounted, method: str, path: str, body: Any, status: int) -> None:
    sent = {} if body is None else {"json": body}
    answer = host.ask(method, path, **sent)
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")


def test_the_commands_learn_undo_and_show(run: Invoke) -> None:
    assert run("remember", SAID, "--session", "monday", "--role", "user", "--user", "aino").exit_code == 0
    dry = run("learn", "--session", "monday", "--dry-run")
    assert "1 message read; facts: 2; known already: 0" in dry.output and "--undo" not in dry.output
    report = json.loads(run("learn", "--user", "aino", "--json").stdout)
    assert [fact["text"] for fact in report["facts"]] == ["I live in Turku", "My sister Anna is a nurse"]
    assert "I live in Turku" in run("profile", "aino").output
    assert json.loads(run("profile", "aino", "--max-tokens", "4", "--json").stdout)["left_out"] == 1
    assert report["run"] in run("learn", "--runs").output
    assert run("learn", "--undo", report["run"]).output == "facts archived: 2; changed facts that stay: 0\n"
    assert "undone" in run("learn", "--runs").output
    message = report["facts"][0]["message_id"]
    assert "facts: 2" in run("learn", "--message", message).output


def test_wrong_options_of_the_commands_are_told(run: Invoke) -> None:
    run("remember", SAID, "--session", "monday", "--role", "user")
    both = run("learn", "--undo", "x", "--runs")
    assert (both.exit_code, both.output) == (2, "error: --undo: cannot be combined with options that select messages\n")
    missing = run("learn", "--undo", "x")
    assert missing.exit_code == 2 and "agentformer learn --runs" in missing.output
    assert "there is no message x" in run("learn", "--message", "x").output
