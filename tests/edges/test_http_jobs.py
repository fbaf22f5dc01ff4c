"""Jobs over HTTP: acknowledged at once, followed as JSON or events, cancelled, and seen by their namespace only."""

from __future__ import annotations

import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from flask import Flask

from agentformer.access.permissions import Grant
from agentformer.api import create_app, init_app
from agentformer.api.app import close_app
from agentformer.api.endpoints import jobs as api_jobs
from agentformer.settings import load_settings
from tests.readers.conftest import make_pdf

BOUND = 120.0
KEYS = b"The caretaker keeps the keys in the blue cupboard."
ASYNC = {"Prefer": "respond-async"}


def make_app(folder: Path, **settings: Any) -> Any:
    return create_app(
        load_settings({"index_dir": folder / "i", "upload_dir": folder / "u", "embedder": "hashing", **settings})
    )


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    app = make_app(tmp_path)
    yield app
    close_app(app)


@pytest.fixture
def client(app: Any) -> Any:
    return app.test_client()


@pytest.fixture
def gate(app: Any) -> Iterator[threading.Event]:
    """Jobs wait in the middle of each file until it is set."""
    go = threading.Event()
    hold(app, go)
    yield go
    go.set()


def hold(app: Any, go: threading.Event) -> None:
    """The reading of files, which may take as long as it likes, takes until `go`."""
    ingest = app.extensions["agentformer"].rag._ingest.get()

    def slow(*arguments: Any, **named: Any) -> Any:
        assert go.wait(BOUND)
        return ingest.read(*arguments, **named)

    pipeline = SimpleNamespace(read=slow, entries=ingest.entries)
    app.extensions["agentformer"].rag._ingest.set(pipeline)


def send(client: Any, *files: tuple[bytes, str], prefer: str = "respond-async", prefix: str = "", **form: str) -> Any:
    data = {"file": [(io.BytesIO(data), name) for data, name in files], **form}
    return client.post(f"{prefix}/api/rag/upload", data=data, headers={"Prefer": prefer})


def until(client: Any, place: str, holds: Callable[[Any], bool] = lambda job: job["progress"] and ended(job)) -> Any:
    deadline = time.monotonic() + BOUND
    while not holds(job := client.get(place).json):
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
    return job


def ended(job: Any) -> bool:
    return job["state"] in ("done", "failed", "cancelled")


def events(response: Any) -> list[tuple[str, Any]]:
    told = [block for block in response.text.split("\n\n") if block and not block.startswith(":")]
    lines = [block.splitlines() for block in told]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.mark.process
def test_an_upload_that_is_acknowledged_becomes_documents(client: Any) -> None:
    answer = send(
        client, (make_pdf([["Nothing."], [KEYS.decode()]]), "rules.pdf"), (b"", "empty.txt"), namespace="ours"
    )
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (202, "respond-async")
    accepted = answer.json
    assert answer.headers["Location"] == f"/api/jobs/{accepted['id']}"
    assert (accepted["state"], accepted["namespace"], accepted["progress"]["files"]) == ("queued", "ours", 2)

    job = until(client, answer.headers["Location"])
    assert set(job) == set(accepted)
    assert (job["state"], job["reason"], job["cancelling"]) == ("done", "", False)
    assert [(d["name"], d["status"], d["pages"]) for d in job["documents"]] == [
        ("rules.pdf", "ready", 2),
        ("empty.txt", "failed", 0),
    ]
    assert job["progress"]["files_done"] == 2
    assert (job["progress"]["pages"], job["progress"]["chunks"]) == (2, job["documents"][0]["chunks"])
    assert job["progress"]["windows_done"] == job["progress"]["windows"] > 0
    asked = client.post("/api/rag/query", json={"question": "Who keeps the keys?", "namespace": "ours"}).json
    assert asked["citations"][0]["document_id"] == job["documents"][0]["id"]


def test_a_job_without_a_usable_file_has_failed(client: Any) -> None:
    job = until(client, send(client, (b"", "empty.txt")).headers["Location"])
    assert (job["state"], [d["status"] for d in job["documents"]]) == ("failed", ["failed"])


def test_files_without_a_name_are_no_documents_called_by_their_number(client: Any) -> None:
    job = until(client, send(client, (b"One.", "/"), (b"Two.", "ok.txt")).headers["Location"])
    assert [(d["status"], d["name"]) for d in job["documents"]] == [("failed", ""), ("ready", "ok.txt")]


def test_the_files_of_a_job_with_the_same_name_are_all_kept(client: Any) -> None:
    other = send(client, (b"Boats are lifted in October.", "z (2).txt"), prefer="").json["documents"][0]
    files = ((KEYS, "z.txt"), (KEYS + b" And the doors.", "z.txt"))
    for unchanged in (False, True):
        job = until(client, send(client, *files).headers["Location"])
        assert [(d["name"], d["unchanged"]) for d in job["documents"]] == [
            ("z.txt", unchanged),
            ("z (3).txt", unchanged),
        ]
    assert client.get(f"/api/rag/documents/{other['id']}").json["name"] == "z (2).txt"


@pytest.mark.parametrize(
    ("prefer", "status"),
    [
        ("respond-async", 202),
        ("Respond-Async", 202),
        ("wait=10, respond-async; x=1", 202),
        ('return=minimal,respond-async="yes"', 202),
        ("", 201),
        ("respond-asynchronously", 201),
        ("wait=10", 201),
    ],
)
def test_the_preference_is_read_as_the_standard_has_it(client: Any, prefer: str, status: int) -> None:
    assert send(client, (KEYS, "keys.txt"), prefer=prefer).status_code == status


def test_a_wrong_upload_is_refused_before_anything_is_acknowledged(client: Any) -> None:
    assert send(client, (KEYS, "keys.txt"), metadata="[1]").status_code == 400
    assert client.post("/api/rag/upload", data={"namespace": "x"}, headers=ASYNC).status_code == 415
    assert client.get("/api/jobs").json == {"jobs": [], "next": None}


@pytest.mark.slow
def test_a_job_is_followed_by_events_that_end_with_it(
    client: Any, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_jobs, "_SILENT_POLLS", 1)
    place = send(client, (KEYS, "a.txt"), (KEYS + b"!", "b.txt")).headers["Location"]
    until(client, place, lambda job: job["state"] == "running")
    threading.Timer(1.0, gate.set).start()
    stream = client.get(place, headers={"Accept": "text/event-stream"})
    assert (stream.status_code, stream.mimetype) == (200, "text/event-stream")
    assert "\n\n:\n\n" in stream.text  # a sign of life
    told = events(stream)
    assert [name for name, _ in told[:-1]] == ["progress"] * (len(told) - 1)
    assert set(told[0][1]) == {"id", "state", "cancelling", "progress"}
    assert told[-1] == ("done", client.get(place).json)
    assert told[-1][1]["state"] == "done"


def test_the_events_of_an_ended_job_are_its_end(client: Any) -> None:
    place = send(client, (KEYS, "a.txt")).headers["Location"]
    job = until(client, place)
    assert events(client.get(place, headers={"Accept": "text/event-stream"})) == [("done", job)]


@pytest.mark.slow
def test_streams_leave_threads_to_others_and_give_their_place_back(tmp_path: Path) -> None:
    app = make_app(tmp_path, threads=4)  # of which one may follow jobs
    go = threading.Event()
    hold(app, go)
    client = app.test_client()
    place = send(client, (KEYS, "a.txt")).headers["Location"]
    follow = {"headers": {"Accept": "text/event-stream"}}
    first = app.test_client().get(place, buffered=False, **follow)
    refused = client.get(place, **follow)
    assert (refused.status_code, refused.json["limit"]) == (429, "threads")
    assert client.get(place).status_code == 200
    first.close()
    go.set()
    assert events(client.get(place, **follow))[-1][0] == "done"
    close_app(app)


def test_a_running_job_is_cancelled_and_an_ended_one_is_not(client: Any, gate: threading.Event) -> None:
    running = send(client, (KEYS, "a.txt"), (KEYS + b"!", "b.txt")).headers["Location"]
    waiting = send(client, (KEYS, "c.txt")).headers["Location"]
    until(client, running, lambda job: job["state"] == "running")
    assert client.delete(waiting).json["state"] == "cancelled"
    asked = client.delete(running)
    assert (asked.status_code, asked.json["cancelling"]) == (200, True)
    assert client.delete(running).status_code == 200
    gate.set()
    job = until(client, running)
    assert (job["state"], len(job["documents"]) <= 1) == ("cancelled", True)
    again = client.delete(running)
    assert (again.status_code, again.json["type"]) == (409, "urn:agentformer:problem:conflict")
    assert "c.txt" not in [d["name"] for d in client.get("/api/rag/documents").json["documents"]]


def test_over_the_most_jobs_a_further_one_is_told_when_to_come_back(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_jobs=1)
    go = threading.Event()
    hold(app, go)
    client = app.test_client()
    first = send(client, (KEYS, "a.txt"))
    refused = send(client, (KEYS, "b.txt"))
    assert (first.status_code, refused.status_code, refused.json["limit"]) == (202, 429, "max_jobs")
    assert int(refused.headers["Retry-After"]) > 0
    go.set()
    until(client, first.headers["Location"])
    assert send(client, (KEYS, "b.txt")).status_code == 202
    close_app(app)


@pytest.mark.parametrize(
    "job_id", ["x", "..%2F..%2Fx", "a%00b", "%ff", "n" * 3000, "019a0000-0000-7000-8000-000000000000"]
)
def test_an_unknown_job_is_not_found(client: Any, job_id: str) -> None:
    send(client, (KEYS, "a.txt"))
    for answer in (client.get(f"/api/jobs/{job_id}"), client.delete(f"/api/jobs/{job_id}")):
        assert answer.status_code == 404
        assert answer.content_type == "application/problem+json"


def test_jobs_are_listed_in_pages_newest_first(client: Any) -> None:
    ids = [send(client, (KEYS, "a.txt"), namespace=f"n{n % 2}").json["id"] for n in range(5)]
    page = client.get("/api/jobs?limit=3").json
    assert [job["id"] for job in page["jobs"]] == ids[:1:-1]
    rest = client.get(f"/api/jobs?limit=3&after={page['next']}").json
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == ([ids[1], ids[0]], None)
    assert [job["id"] for job in client.get("/api/jobs?namespace=n1").json["jobs"]] == [ids[3], ids[1]]
    for wrong in ("limit=0", "limit=201", "limit=x", "namespace=", "colour=red"):
        assert client.get(f"/api/jobs?{wrong}").status_code == 400


@pytest.mark.slow
def test_a_key_sees_and_cancels_its_own_jobs_in_its_namespaces_only(tmp_path: Path) -> None:
    flask = pytest.importorskip("flask")
    ours = make_app(tmp_path)
    go = threading.Event()
    hold(ours, go)
    hosts = {}
    for name, grant in {
        "north": Grant(frozenset({"read", "write"}), ("north",), key_id="n"),
        "south": Grant(frozenset({"read", "write"}), ("south",), key_id="s"),
        "moved": Grant(frozenset({"read", "write"}), ("south",), key_id="n"),
        "other": Grant(frozenset({"read", "write"}), key_id="o"),
        "reader": Grant(frozenset({"read"}), ("north",), key_id="n"),
        "writer": Grant(frozenset({"write"}), ("north",), key_id="n"),
        "admin": Grant(frozenset({"admin"}), ("north",), key_id="a"),
    }.items():
        host = flask.Flask(name)
        init_app(host, ours.extensions["agentformer"], authorize=lambda grant=grant: grant)
        hosts[name] = host
    client = {name: host.test_client() for name, host in hosts.items()}

    place = send(client["north"], (KEYS, "a.txt")).headers["Location"]
    assert client["north"].get(place).json["namespace"] == "north"
    assert client["reader"].get(place).status_code == 200
    assert client["reader"].delete(place).status_code == 403
    assert client["writer"].get(place).status_code == 403
    assert send(client["south"], (KEYS, "a.txt"), namespace="north").status_code == 403
    waiting = send(client["north"], (KEYS + b"!", "secret.txt")).headers["Location"]
    cancelled = client["writer"].delete(waiting)
    assert (cancelled.status_code, cancelled.data) == (204, b"")
    assert client["north"].get(waiting).json["state"] == "cancelled"
    ended = [client[name].delete(waiting).status_code for name in ("writer", "north")]
    assert ended == [204, 409]  # who cannot read does not learn when a job ended

    unknown = "/api/jobs/019a0000-0000-7000-8000-000000000000"
    for name, method in itertools.product(("south", "moved", "other"), ("get", "delete")):
        told = []
        for each in (place, unknown):
            answer = getattr(client[name], method)(each, headers={"X-Request-ID": "one"})
            told.append((answer.status_code, answer.text.replace(each.rpartition("/")[2], ""), len(answer.headers)))
        assert told[0] == told[1], name
        assert told[0][0] == 404
    assert client["admin"].get(place).status_code == 200
    assert len(client["admin"].get("/api/jobs").json["jobs"]) == 2
    assert client["other"].get("/api/jobs").json["jobs"] == client["moved"].get("/api/jobs").json["jobs"] == []
    assert client["south"].get("/api/jobs").json["jobs"] == []
    assert client["south"].get("/api/jobs?namespace=north").status_code == 403
    assert len(client["north"].get("/api/jobs").json["jobs"]) == 2
    go.set()
    assert until(client["north"], place)["state"] == "done"
    for host in hosts.values():
        close_app(host)
    close_app(ours)


def test_one_key_leaves_places_in_the_queue_to_others(tmp_path: Path) -> None:
    """A key with as many jobs as places are free gets 429, and its jobs do not hinder other keys."""
    ours = make_app(tmp_path, max_jobs=8)
    go = threading.Event()
    hold(ours, go)
    host, memory = Flask("host"), ours.extensions["agentformer"]
    asking = ["a"]
    init_app(host, memory, authorize=lambda: Grant(frozenset({"read", "write"}), key_id=asking[0]))
    client, accepted = host.test_client(), []
    for key in "abcde":
        asking[0] = key
        statuses = [send(client, (KEYS, f"{key}{number}.txt")).status_code for number in range(8)]
        accepted.append(statuses.count(202))
        assert statuses == [202] * accepted[-1] + [429] * (8 - accepted[-1])
    assert accepted == [4, 2, 1, 1, 0]
    refused = send(client, (KEYS, "x.txt"))
    assert (refused.json["limit"], int(refused.headers["Retry-After"]) > 0) == ("max_jobs", True)
    go.set()
    asking[0] = "a"
    for job in client.get("/api/jobs").json["jobs"]:
        until(client, f"/api/jobs/{job['id']}")
    assert send(client, (KEYS, "again.txt")).status_code == 202
    close_app(host)
    close_app(ours)


def test_a_job_below_a_prefix_is_found_where_it_is_said_to_be(tmp_path: Path) -> None:
    flask = pytest.importorskip("flask")
    ours = make_app(tmp_path)
    host = flask.Flask("host")
    init_app(host, ours.extensions["agentformer"], url_prefix="/memory")
    client = host.test_client()
    answer = send(client, (KEYS, "a.txt"), prefix="/memory")
    assert answer.headers["Location"].startswith("/memory/api/jobs/")
    assert until(client, answer.headers["Location"])["state"] == "done"
    close_app(host)
    close_app(ours)


def test_what_was_acknowledged_before_the_end_is_done_after_the_next_start(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    rag = app.extensions["agentformer"].rag
    pipeline, began = rag._ingest.get(), threading.Event()

    def breaks(document: Any, text: Any, progress: Any, chunks: Any) -> Any:
        began.set()
        while True:  # until the end of the process breaks it off
            progress(0, 1)
            time.sleep(0.01)

    rag._ingest.set(SimpleNamespace(read=pipeline.read, entries=breaks))
    place = send(app.test_client(), (KEYS, "keys.txt")).headers["Location"]
    assert began.wait(BOUND)
    close_app(app)

    again = make_app(tmp_path)
    client = again.test_client()
    assert until(client, place)["state"] == "done"
    assert [d["name"] for d in client.get("/api/rag/documents").json["documents"]] == ["keys.txt"]
    close_app(again)
