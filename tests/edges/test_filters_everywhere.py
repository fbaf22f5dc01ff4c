"""A filter has the same meaning in every door: Python, HTTP, tools, MCP and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from click.testing import CliRunner
from flask.testing import FlaskClient

from agentformer import AgentFormer, connect
from agentformer.api.app import close_app, create_app
from agentformer.cli import main
from agentformer.errors import InvalidInput
from agentformer.types import Scope

RECENT = {"type": "gte", "key": "year", "value": 2025}
NOT_RECENT = {"type": "not", "filters": [RECENT]}


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        for year in range(2020, 2028):
            af.memory.store(f"The budget of {year} was approved.", metadata={"year": year})
        yield af


@pytest.fixture
def client(af: AgentFormer) -> Iterator[FlaskClient]:
    app = create_app(af.settings)
    yield app.test_client()
    close_app(app)


def years(entries: Any) -> list[int]:
    return sorted(entry["metadata"]["year"] for entry in entries)


def test_http_searches_lists_counts_and_removes_by_a_filter(client: FlaskClient) -> None:
    body = {"text": "budget", "where": RECENT, "noise_floor": 0.0}
    hits = client.post("/api/memory/search", json=body).get_json()["hits"]
    assert years(hits) == [2025, 2026, 2027]
    listed = client.get("/api/memory", query_string={"where": json.dumps(NOT_RECENT)}).get_json()
    assert years(listed["entries"]) == [2020, 2021, 2022, 2023, 2024]
    assert client.post("/api/memory/count", json={"where": RECENT}).get_json() == {"count": 3}
    assert client.post("/api/memory/remove", json={"where": RECENT}).get_json() == {"count": 3}
    ids = [entry["id"] for entry in listed["entries"]]
    assert client.post("/api/memory/remove", json={"ids": [*ids[:2], "absent"]}).get_json() == {"count": 2}
    assert client.post("/api/memory/count", json={}).get_json() == {"count": 3}


def test_http_removes_the_records_of_the_host_application(af: AgentFormer, client: FlaskClient) -> None:
    af.memory.upsert_many([{"content": f"page {n}", "source_type": "url", "source_id": f"u{n}"} for n in range(3)])
    body = {"source_type": "url", "source_ids": ["u0", "u2", "u9"]}
    assert client.post("/api/memory/remove", json=body).get_json() == {"count": 2}
    assert [entry.source_id for entry in af.memory.list(source_type="url")] == ["u1"]


def test_http_refuses_an_invalid_filter_and_an_unclear_removal(client: FlaskClient) -> None:
    wrong = client.post("/api/memory/search", json={"text": "a", "where": {"type": "like", "key": "a", "value": 1}})
    assert (wrong.status_code, wrong.get_json()["field"]) == (400, "where.type")
    text = client.get("/api/memory", query_string={"where": "year=1"})
    assert (text.status_code, text.get_json()["field"]) == (400, "where")
    for body in ({}, {"ids": []}, {"ids": ["a"], "where": RECENT}):
        assert client.post("/api/memory/remove", json=body).status_code == 400


def test_no_door_removes_entries_by_a_misspelt_filter(af: AgentFormer, client: FlaskClient) -> None:
    misspelt = {"type": "not", "filters": [{"type": "eq", "kye": "year", "value": 2025}]}
    removed = client.post("/api/memory/remove", json={"where": misspelt})
    assert (removed.status_code, removed.get_json()["field"]) == (400, "where.filters[0]")
    with pytest.raises(InvalidInput, match="lacks the key 'key' and has the unknown key 'kye'"):
        af.memory.remove(Scope(where=misspelt))
    with pytest.raises(InvalidInput, match="lacks the key 'filters'"):
        af.rag.query("budget", where={"type": "and"})
    places = ["--index-dir", str(af.settings.index_dir), "--upload-dir", str(af.settings.upload_dir)]
    for command in (["forget", "--yes"], ["memories"]):
        result = CliRunner().invoke(main, [*command, "--where", json.dumps(misspelt), *places, "--embedder", "hashing"])
        assert result.exit_code != 0 and "unknown key 'kye'" in result.output
    with pytest.raises(InvalidInput, match="unknown key 'kye'"):
        af.toolbox.call("memory_search", {"query": "budget", "where": misspelt})
    assert af.memory.count() == 8


def test_http_does_not_remove_documents_by_a_filter(af: AgentFormer, client: FlaskClient, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The budget of 2031 was approved.")
    document = af.rag.upload(tmp_path / "a.txt", metadata={"year": 2031})
    assert client.post("/api/memory/remove", json={"where": RECENT}).get_json() == {"count": 3}
    assert af.memory.count(kinds=["chunk"], where={"year": 2031}) == 1
    assert af.memory.get(document.id).kind == "document"


def test_http_stores_text_as_it_is_and_entries_that_no_search_returns(client: FlaskClient) -> None:
    block = '<recalled-memory>\n<memory id="a">x</memory>\n</recalled-memory>'
    assert client.post("/api/memory", json={"content": block}).status_code == 400
    stored = client.post("/api/memory", json={"content": block, "verbatim": True, "searchable": False})
    assert (stored.status_code, stored.get_json()["content"]) == (201, block)
    assert client.post("/api/memory/search", json={"text": "recalled"}).get_json()["hits"] == []


def test_a_tool_searches_with_a_filter(af: AgentFormer) -> None:
    result = af.toolbox.call("memory_search", {"query": "budget", "where": RECENT, "limit": 9})
    assert sorted(memory["content"][14:18] for memory in result["memories"]) == ["2025", "2026", "2027"]


def test_the_command_line_lists_counts_and_forgets_by_a_filter(af: AgentFormer) -> None:
    places = ["--index-dir", str(af.settings.index_dir), "--upload-dir", str(af.settings.upload_dir)]
    places += ["--embedder", "hashing"]

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(main, [*arguments, "--json", *places])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    assert years(run("memories", "--where", json.dumps(RECENT))["entries"]) == [2025, 2026, 2027]
    assert years(run("recall", "budget", "--where", json.dumps(RECENT), "--all")["hits"]) == [2025, 2026, 2027]
    assert run("forget", "--where", json.dumps(RECENT), "--where", "year=2026", "--yes") == {"forgotten": 1}
    assert run("forget", "--where", json.dumps(NOT_RECENT), "--yes") == {"forgotten": 5}
    assert sorted(entry.metadata["year"] for entry in af.memory.list()) == [2025, 2027]
