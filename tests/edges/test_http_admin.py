"""Endpoints for administrators: keys, checks of the stored data, nodes; and the map and the salience of entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.keys import KeyStore
from agentformer.api.app import close_app, create_app
from agentformer.api.endpoints import keys, server
from agentformer.api.endpoints.console import Map
from agentformer.api.models.memory import Salience
from agentformer.settings import load_settings
from tests.edges.mounted import grant, mounted, shaped
from tests.edges.running import wait_until


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing", "clean_every": 0}
    app = create_app(load_settings(where))
    yield app
    close_app(app)


@pytest.fixture
def client(app: Any) -> Any:
    return app.test_client()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_is_added_shown_once_restricted_and_revoked(client: Any) -> None:
    assert shaped(keys.StoredKeys, client.get("/api/keys"))["required"] is False
    boss = shaped(keys.MadeKey, client.post("/api/keys", json={"name": "boss", "rights": ["admin"]}), 201)
    assert client.get("/api/keys").status_code == 401
    mine = bearer(boss["key"])
    body = {"name": "website", "rights": ["read"], "namespaces": ["handbook"], "days": 90}
    made = shaped(keys.MadeKey, client.post("/api/keys", json=body, headers=mine), 201)
    listed = shaped(keys.StoredKeys, client.get("/api/keys", headers=mine))
    assert [(key["name"], key["own"], key["expires_at"] is None) for key in listed["keys"]] == [
        ("boss", True, True),
        ("website", False, False),
    ]
    assert made["key"] not in client.get("/api/keys", headers=mine).text
    theirs = bearer(made["key"])
    assert client.get("/api/memory", headers=theirs).status_code == 200
    assert client.get("/api/keys", headers=theirs).status_code == 403
    path = f"/api/keys/{made['id']}"
    changed = client.patch(path, json={"without": ["memory_search"]}, headers=mine)
    assert shaped(keys.StoredKey, changed)["without"] == ["memory_search"]
    assert client.get("/api/memory", headers=theirs).status_code == 403
    moved = client.patch(path, json={"namespaces": ["board", "office"], "rights": ["read", "write"]}, headers=mine).json
    assert (moved["namespaces"], moved["rights"]) == (["board", "office"], ["read", "write"])
    renamed = client.patch(path, json={"name": "site"}, headers=mine).json
    assert (renamed["name"], renamed["namespaces"], renamed["without"]) == (
        "site",
        moved["namespaces"],
        ["memory_search"],
    )
    assert client.delete(path, headers=mine).status_code == 204
    assert client.get("/api/namespaces", headers=theirs).status_code == 401
    assert client.delete(path, headers=mine).status_code == 404


@pytest.mark.parametrize("more", [{"rights": ["read"]}, {"rights": ["read", "write"]}, {"namespaces": ["board"]}])
def test_the_first_key_must_be_able_to_administer_keys(client: Any, more: dict[str, Any]) -> None:
    answer = client.post("/api/keys", json={"name": "website", "rights": ["admin"], **more})
    assert answer.status_code == 409 and "first key must have the right admin" in answer.json["detail"]
    stored = client.get("/api/keys").json
    assert (stored["keys"], stored["required"]) == ([], False)
    assert (stored["needs"]["rag_query"], stored["needs"]["memory_update"]) == ("read", "change")


def test_a_caller_sees_its_rights_with_its_namespaces(client: Any, tmp_path: Path) -> None:
    assert client.get("/api/namespaces").json["rights"] == ["admin", "read", "write"]
    _, secret = KeyStore(tmp_path / "i").make("website", ["read"])
    assert client.get("/api/namespaces", headers=bearer(secret)).json == {"namespaces": [], "rights": ["read"]}


def test_a_key_cannot_lock_itself_out_or_give_away_more_than_it_has(client: Any, tmp_path: Path) -> None:
    key, secret = KeyStore(tmp_path / "i").make("boss", ["admin"], without=["memory_delete"])
    mine, own = bearer(secret), f"/api/keys/{key.id}"
    assert client.delete(own, headers=mine).status_code == 409
    assert client.patch(own, json={"rights": ["read"]}, headers=mine).status_code == 409
    assert client.patch(own, json={"name": "chief"}, headers=mine).json["name"] == "chief"
    made = client.post("/api/keys", json={"name": "helper", "without": ["rag_upload"]}, headers=mine).json
    assert made["without"] == ["memory_delete", "rag_upload"]
    widened = client.patch(f"/api/keys/{made['id']}", json={"without": []}, headers=mine).json
    assert widened["without"] == ["memory_delete"]


@pytest.mark.parametrize(
    "body", [{"name": "a", "rights": []}, {"name": "a", "without": ["fly"]}, {"name": "a\nb"}, {"rights": ["read"]}]
)
def test_a_wrong_key_is_not_made(client: Any, body: dict[str, Any]) -> None:
    answer = client.post("/api/keys", json=body)
    assert answer.status_code == 400 and answer.json["detail"]
    assert client.get("/api/keys").json["keys"] == []


def test_an_empty_change_of_a_key_is_refused(client: Any) -> None:
    assert client.patch("/api/keys/none", json={}).status_code == 400


def test_an_administrator_of_some_namespaces_has_no_keys_checks_or_nodes(tmp_path: Path) -> None:
    with mounted(tmp_path) as host:
        some = grant("admin", only=("team",))
        for path in ("/api/keys", "/api/checks", "/api/nodes"):
            assert host.ask("GET", path, some).status_code == 403
        answer = host.ask("GET", "/api/keys", grant("admin"))
        assert answer.status_code == 404 and "host application" in answer.json["detail"]


@pytest.mark.usefixtures("faiss_files")
def test_a_check_reports_damage_with_what_to_do(app: Any, client: Any, tmp_path: Path) -> None:
    app.extensions["agentformer"].memory.store("Aino prefers tea.")
    assert shaped(server.Checked, client.get("/api/checks"))["state"] == "never"

    def run() -> Any:
        shaped(server.Checked, client.post("/api/checks"), 202)
        wait_until(lambda: client.get("/api/checks").json["state"] != "running")
        return shaped(server.Checked, client.get("/api/checks"))

    assert (run()["state"], run()["well"]) == ("done", True)
    with sqlite3.connect(tmp_path / "i/memory.sqlite3") as connection:
        connection.execute("UPDATE entries SET content = 'Aino prefers rum.'")
    found = [check for check in run()["checks"] if check["found"]]
    assert found and found[0]["findings"]
    assert client.get("/api/checks").json["well"] is False


@pytest.mark.usefixtures("faiss_files")
def test_a_memory_of_one_machine_has_no_nodes(client: Any) -> None:
    assert shaped(server.Nodes, client.get("/api/nodes")) == {"nodes": [], "queue": None}


def test_the_map_names_the_place_of_each_point(app: Any, client: Any) -> None:
    memory = app.extensions["agentformer"]
    empty = shaped(Map, client.get("/api/memory/map"))
    assert (empty["ids"], empty["space"]) == ([], "")
    document = memory.rag.upload(b"The boat is red.", name="rules.txt")
    message = memory.memory.add_message("monday", "user", "The pier is blue.")
    memory.memory.store("Elsewhere.", namespace="other")
    wait_until(lambda: client.get("/api/memory/map").json["state"] == "ready")
    found = shaped(Map, client.get("/api/memory/map"))
    assert len(found["ids"]) == len(found["x"]) == len(found["y"]) == 2
    at = found["ids"].index(message.id)
    assert found["sessions"][found["session"][at]] == "monday"
    assert (found["kinds"][found["kind"][at]], found["document"][at]) == ("message", -1)
    assert found["documents"] == [{"id": document.id, "name": "rules.txt"}]


def test_the_salience_says_how_it_falls_and_a_look_is_no_use(app: Any, client: Any) -> None:
    memory = app.extensions["agentformer"].memory
    entry = memory.store("Aino is on holiday.", category="context", salience=0.8)
    path = f"/api/memory/{entry.id}/salience"
    for _ in range(2):
        found = shaped(Salience, client.get(path))
        assert (found["stored"], found["rate"], found["used"]) == (0.8, 0.9, False)
        assert 0.79 < found["now"] <= 0.8
    assert client.get("/api/memory/none/salience").status_code == 404
