"""The trail: who changed what, through each door; nothing is without its row, and no row has a text."""

from __future__ import annotations

import io
import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("flask", reason="the extra `server` is not installed")

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.actor import ACTOR, NOBODY, Actor
from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.cli import main
from agentformer.errors import NotOffered, StoreFull
from agentformer.factory import AgentFormer
from agentformer.records import trail
from agentformer.records.trail import Act, Wanted
from agentformer.settings import Settings
from agentformer.types import common
from tests.backends.postgres_server import schema_of
from tests.edges.running import wait_until

SECRET = "a heron in the reeds"


@pytest.fixture(autouse=True)
def nobody() -> Any:
    token = ACTOR.set(NOBODY)
    yield
    ACTOR.reset(token)


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", **more)


def acts_of(af: AgentFormer, **wanted: Any) -> list[Act]:
    return af.trail.page(Wanted(**wanted), limit=10_000)


def test_each_change_of_an_entry_has_its_row(tmp_path: Path) -> None:
    with AgentFormer(settings(tmp_path)) as af:
        ACTOR.set(Actor("k1", "aino", "http", "203.0.113.7", "r1"))
        first, second = af.memory.store_many([SECRET, "a stork"], namespace="team")
        af.memory.update(first.id, content="an egret")
        af.memory.supersede(first.id, second.id)
        af.memory.remove(second.id)
        ACTOR.set(NOBODY)
        document = af.rag.upload(b"The caretaker keeps the keys.", name="keys.txt").id
        found = acts_of(af)
        assert [(act.action, act.subject, act.version) for act in found[:6]] == [
            ("stored", first.id, 1),
            ("stored", second.id, 1),
            ("changed", first.id, 2),
            ("superseded", first.id, 3),
            ("removed", second.id, 1),
            ("changed", first.id, 4),  # a fact whose successor is gone holds again
        ]
        assert {act[7:] for act in found[:6]} == {("k1", "aino", "http", "203.0.113.7", "r1")}
        assert [(act.action, act.subject, act.kind, act.via) for act in found[6:]] == [
            ("stored", document, "document", "program")
        ], "pages and chunks change with their document"
        assert SECRET not in repr(found) and "egret" not in repr(found)
        assert acts_of(af, subject=second.id) == [found[1], found[4]]
        assert acts_of(af, key="k1", namespaces=("other",)) == []
        assert acts_of(af, since=datetime.now(UTC) + timedelta(hours=1)) == []
        assert [af.trail.page(Wanted(), after=act.seq, limit=1) for act in found] == [[act] for act in found[1:]] + [[]]


def test_a_change_that_fails_leaves_no_row(tmp_path: Path) -> None:
    with AgentFormer(settings(tmp_path)) as af:
        entry = af.memory.store(SECRET)
        with pytest.raises(agentformer.AgentFormerError):
            af.memory.update(entry.id, expected_version=9, content="an egret")
        assert [act.action for act in acts_of(af)] == ["stored"]


def test_the_doors_tell_who_acts(tmp_path: Path) -> None:
    app = create_app(settings(tmp_path, trusted_proxies="127.0.0.1"))
    af = app.extensions["agentformer"]
    try:
        admin, secret = KeyStore(tmp_path / "i").make("admin", ("admin",))
        client = app.test_client()
        asked = {"Authorization": f"Bearer {secret}", "X-Request-ID": "trace-1", "X-Forwarded-For": "203.0.113.7"}
        entry = client.post("/api/memory", json={"content": SECRET}, headers=asked).json["id"]
        added = client.post("/api/keys", json={"name": "team", "namespaces": ["team"]}, headers=asked).json
        rotated = client.post(f"/api/keys/{added['id']}/rotate", json={}, headers=asked).json
        client.patch(f"/api/keys/{rotated['id']}", json={"rights": ["admin"]}, headers=asked)
        client.delete(f"/api/keys/{added['id']}", headers=asked)
        form = {"file": (io.BytesIO(b"The caretaker keeps the keys."), "keys.txt")}
        job = client.post("/api/rag/upload", data=form, headers={**asked, "Prefer": "respond-async"}).json["id"]
        wait_until(lambda: client.get(f"/api/jobs/{job}", headers=asked).json["state"] == "done")
        acts = client.get("/api/trail", headers=asked).json["acts"]
        assert [(act["action"], act["subject"]) for act in acts[:6]] == [
            ("stored", entry),
            ("key-added", added["id"]),
            ("key-rotated", added["id"]),
            ("key-added", rotated["id"]),
            ("key-changed", rotated["id"]),
            ("key-revoked", added["id"]),
        ]
        assert {tuple(act[name] for name in ("key", "via", "client", "request")) for act in acts[:6]} == {
            (admin.id, "http", "203.0.113.7", "trace-1")
        }
        assert [(act["kind"], act["key"], act["via"], act["request"]) for act in acts[6:]] == [
            ("document", admin.id, "job", job)
        ]
        assert SECRET not in json.dumps(acts) and secret not in json.dumps(acts)
        team = {"Authorization": f"Bearer {rotated['key']}"}
        assert client.get("/api/trail", headers=team).json["acts"] == [], "only what its namespaces show"
        reader = KeyStore(tmp_path / "i").make("reader", ("read", "write"))[1]
        assert client.get("/api/trail", headers={"Authorization": f"Bearer {reader}"}).status_code == 403
    finally:
        close_app(app)
    memory = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    ACTOR.set(Actor(via="cli"))
    run = CliRunner().invoke
    assert run(main, ["remember", "The office opens at nine.", *memory]).exit_code == 0
    assert run(main, ["keys", "add", "office", *memory]).exit_code == 0
    assert run(main, ["backup", f"{tmp_path}/b", *memory]).exit_code == 0
    told = run(main, ["trail", "--json", "--since", f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}", *memory])
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [line["action"] for line in lines[-3:]] == ["stored", "key-added", "backup"]
    assert all(line["via"] == "cli" and line["user"] and not line["key"] for line in lines[-3:])
    table = run(main, ["trail", *memory]).stdout
    assert "http  203.0.113.7" in table and "  default  " in table
    nothing = run(main, ["trail", "--key", "nobody", *memory])
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "the trail has no such row\n")
    assert run(main, ["remember", "One.", "--namespace", "n" * 200, *memory]).exit_code == 0
    assert max(map(len, run(main, ["trail", *memory]).stdout.splitlines())) < 200, "one long name widens no row much"
    assert af.settings.trail_days == 365


def rows(af: AgentFormer, count: int) -> list[Act]:
    """Write rows about some subjects, by some keys in some namespaces, and set the clock back now and then."""
    choose = random.Random(3)
    minutes = [choose.choice((-1, -1, 1, 2, 5)) * 60_000_000 for _ in range(count)]
    with af.backend.feed.writing() as connection:
        for at in itertools.accumulate(minutes, initial=1_700_000_000_000_000):
            row = (
                at,
                "stored",
                choose.choice("abc"),
                choose.choice(("team", "t\0", "other")),
                choose.choice(("", "k")),
            )
            connection.run(_FOR_TEST, row)
    return acts_of(af)


_FOR_TEST = common(
    "INSERT INTO trail (at, action, subject, namespace, key, kind, version, person, via, client, request) "
    "VALUES (?, ?, ?, ?, ?, '', 1, '', '', '', '')"
)


@pytest.mark.parametrize("backend", ["faiss", pytest.param("postgres", marks=pytest.mark.process)])
def test_no_row_is_missed_although_a_clock_was_set_back(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    named = {"backend": backend}
    if backend == "postgres":
        url = request.getfixturevalue("postgres_url")
        named |= {"postgres_url": url, "postgres_schema": schema_of(tmp_path), "originals": "database"}
    with AgentFormer(settings(tmp_path, **named)) as af:
        every = rows(af, 200)
        assert len(every) == 201 and [act.seq for act in every] == sorted(act.seq for act in every)
        assert [act.at for act in every] != sorted(act.at for act in every)
        for since in [None, *(act.at for act in every[::9])]:
            for subject, key, namespaces in itertools.product(("", "b"), ("", "k"), ((), ("team", "t\0"))):
                wanted = Wanted(subject, key, namespaces, since)
                expected = [
                    act
                    for act in every
                    if (not since or act.at >= since)
                    and (not subject or act.subject == subject)
                    and (not key or act.key == key)
                    and (not namespaces or act.namespace in namespaces)
                ]
                first = af.trail.page(wanted, limit=3)
                assert first == expected[:3]
                if first:
                    assert af.trail.page(wanted, after=first[-1].seq, limit=500) == expected[3:]
        assert af.trail.page(Wanted(since=datetime.now(UTC))) == []
        deleted = af.trail.trim(0)
        assert (deleted, acts_of(af)) == (len(every), [])


def test_rows_are_deleted_after_their_time_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AgentFormer(settings(tmp_path)) as af:
        af.memory.store_many([f"fact {n}" for n in range(3)])
        with af.backend.feed.writing() as connection:
            connection.execute("UPDATE trail SET at = at - 86400000000 * 10 WHERE seq <= 2")
        assert (af.trail.trim(11), len(acts_of(af))) == (0, 3)
        assert (af.trail.trim(9), len(acts_of(af))) == (2, 1)
        assert (af.trail.trim(1e300), len(acts_of(af))) == (0, 1)
    monkeypatch.setattr("agentformer.memory.background._UPKEEP_SECONDS", 0.02)
    with AgentFormer(settings(tmp_path, trail_days=0)) as af:
        af.ready()
        wait_until(lambda: acts_of(af) == [])


def test_rows_are_deleted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "_PIECE", 10)
    with AgentFormer(settings(tmp_path)) as af:
        every = rows(af, 44)
        assert (af.trail.trim(0, pieces=2), len(acts_of(af))) == (20, 25)
        assert {act.at for act in acts_of(af)} == set(sorted(act.at for act in every)[20:]), "the oldest go first"
        assert (af.trail.trim(0), acts_of(af)) == (25, [])


def test_a_key_is_made_although_its_row_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(settings(tmp_path))
    af = app.extensions["agentformer"]

    def full(*_: str) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(af.trail, "note", full)
    try:
        made = app.test_client().post("/api/keys", json={"name": "admin", "rights": ["admin"]})
    finally:
        close_app(app)
    assert made.status_code == 201 and KeyStore(tmp_path / "i").grant_of(made.json["key"]).may("admin")
    assert f"the trail lacks a row (key-added {made.json['id']}): the disk is full" in caplog.text


def test_a_backend_without_a_feed_says_so(tmp_path: Path) -> None:
    with AgentFormer(settings(tmp_path, backend="local_json")) as af:
        af.memory.store(SECRET)
        af.note("backup")
        with pytest.raises(NotOffered, match="local_json"):
            _ = af.trail
