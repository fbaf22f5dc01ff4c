"""Single memories over HTTP: add, look, change, forget, list."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.models import memory as models
from agentformer.types import MemoryEntry, Source
from tests.edges.mounted import Mounted, grant, mounted, shaped

ADMIN_A = grant("admin", only=("a",))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """For requests that store nothing."""
    with mounted(tmp_path_factory.mktemp("quiet")) as host:
        yield host
        assert host.af.backend.namespaces() == []


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """For requests whose effects do not matter."""
    with mounted(tmp_path_factory.mktemp("busy")) as host:
        host.add("Aino prefers tea.")
        yield host


# ---------------------------------------------------------------- adding


def test_what_is_added_is_at_its_location_with_its_version(host: Mounted) -> None:
    made = host.post("/api/memory", {"content": "Aino prefers tea.", "title": "Tea", "metadata": {"a": [1, None]}})
    entry = shaped(models.Entry, made, 201)
    assert made.headers["Location"] == f"/m/api/memory/{entry['id']}" and made.headers["ETag"] == '"1"'
    found = host.client.get(made.headers["Location"])
    assert shaped(models.Entry, found)["metadata"] == {"a": [1, None]} and found.headers["ETag"] == '"1"'
    assert (found.json["namespace"], found.json["tier"], found.json["kind"]) == ("default", "semantic", "fact")


def test_every_argument_of_store_is_taken(host: Mounted) -> None:
    given: dict[str, Any] = {
        "content": "The gate was painted.",
        "tier": "episodic",
        "kind": "milestone",
        "title": "Gate",
        "category": "decisions",
        "salience": 0.5,
        "speaker": "Onni",
        "metadata": {"colour": "blue"},
        "namespace": "n",
        "session_id": "s",
        "agent_id": "a",
        "user_id": "u",
        "project": "p",
        "source_type": "ticket",
        "source_id": "7",
        "pair_id": "x",
        "parent_id": "y",
    }
    told = shaped(models.Entry, host.post("/api/memory", {**given, "occurred_at": "2026-01-02T03:04:05+02:00"}), 201)
    assert {name: told[name] for name in given} == given
    assert told["occurred_at"] == "2026-01-02T01:04:05+00:00"


def test_the_model_of_an_entry_has_every_field_of_one() -> None:
    assert set(models.Entry.model_fields) == {field.name for field in dataclasses.fields(MemoryEntry)}
    assert set(models.Source.model_fields) == {field.name for field in dataclasses.fields(Source)}


def test_the_same_fact_again_is_200_with_the_one_that_is_there(host: Mounted) -> None:
    first = host.post("/api/memory", {"content": "Aino prefers tea."})
    again = host.post("/api/memory", {"content": "Aino prefers tea."})
    told = shaped(models.Entry, again)
    assert (told["id"], told["repeat_count"]) == (first.json["id"], 1)
    assert again.headers["Location"] == first.headers["Location"]


def test_a_batch_is_stored_wholly_or_not_at_all(host: Mounted) -> None:
    items = [{"content": "One."}, {"content": "Two.", "namespace": "n"}]
    told = shaped(models.Entries, host.post("/api/memory/batch", {"items": items}), 201)
    assert [(e["content"], e["namespace"]) for e in told["entries"]] == [("One.", "default"), ("Two.", "n")]
    wrong = host.post("/api/memory/batch", {"items": [{"content": "Three."}, {"content": "4", "occurred_at": "now"}]})
    assert (wrong.status_code, wrong.json["field"]) == (400, "items[1].occurred_at")
    assert [entry.content for entry in host.af.memory.list()] == ["One."]


def test_a_batch_into_a_namespace_out_of_reach_stores_nothing(host: Mounted) -> None:
    items = [{"content": "One.", "namespace": "a"}, {"content": "Two.", "namespace": "b"}]
    assert host.post("/api/memory/batch", {"items": items}, ADMIN_A).status_code == 403
    assert host.af.backend.namespaces() == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "content"),
        ({"content": ""}, "content"),
        ({"content": " \n"}, "content"),
        ({"content": 5}, "content"),
        ({"content": None}, "content"),
        ({"content": "x", "colour": 1}, "colour"),
        ({"content": "x", "kind": "document"}, "kind"),
        ({"content": "x", "tier": "basement"}, "tier"),
        ({"content": "x", "tier": "working"}, "session_id"),
        ({"content": "x", "salience": 2}, "salience"),
        ({"content": "x", "salience": "1"}, "salience"),
        ({"content": "x", "metadata": [1]}, "metadata"),
        ({"content": "x", "occurred_at": "2026-01-02"}, "occurred_at"),
        ({"content": "x", "source_id": "7"}, "source_id"),
        ({"content": "x", "namespace": "n" * 300}, "namespace"),
        ({"content": "x", "namespace": 5}, "namespace"),
        ({"content": "x" * 1_000_001}, "content"),
    ],
)
def test_what_cannot_be_stored_is_400_and_names_the_field(quiet: Mounted, body: dict[str, Any], field: str) -> None:
    answer = quiet.post("/api/memory", body)
    assert (answer.status_code, answer.json["field"]) == (400, field), answer.text
    assert quiet.af.backend.namespaces() == [] and len(answer.data) < 1000


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"content": "x"', 400),
        (b'{"content": "\\ud800"}', 400),
        (b'{"content": "x", "title": "\\udfff"}', 400),
        (b'{"content": "x", "metadata": {"a": {"b": ["\\ud800"]}}}', 400),
        (b'{"content": "x", "metadata": {"\\ud800": 1}}', 400),
        (b'{"content": "x", "metadata": {"a": NaN}}', 400),
        (b'{"content": "x", "metadata": {"a": 1e999}}', 400),
        (b'{"content": "x", "metadata": {"a": ' + b"9" * 400 + b"}}", 400),
        (b'{"content": "x", "metadata": {"a": ' + b"[" * 150 + b"]" * 150 + b"}}", 400),
        (b'{"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b"\xff\xfe", 400),
    ],
)
def test_a_body_that_is_no_good_json_is_never_500(quiet: Mounted, data: bytes, status: int) -> None:
    answer = quiet.ask("POST", "/api/memory", data=data, content_type="application/json")
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json"), answer.text
    assert quiet.af.backend.namespaces() == []


# ---------------------------------------------------------------- listing


def test_a_list_is_walked_by_its_cursor_without_loss_or_repeat(host: Mounted) -> None:
    ids = [host.add(f"Fact number {n}.") for n in range(5)]
    host.add("Elsewhere.", namespace="n")
    seen, after = [], ""
    for _ in range(3):
        page = shaped(models.EntryPage, host.ask("GET", f"/api/memory?limit=2&after={after}"))
        seen += [entry["id"] for entry in page["entries"]]
        after = page["next"]
        if after is None:
            break
    assert (seen, after) == (ids, None)


def test_a_last_page_that_is_full_has_no_next(host: Mounted) -> None:
    ids = [host.add(f"Fact number {n}.") for n in range(2)]
    page = host.ask("GET", "/api/memory?limit=2").json
    assert ([entry["id"] for entry in page["entries"]], page["next"]) == (ids, None)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"fact", "talk", "plan", "own"}),
        ("tier=episodic", {"talk"}),
        ("tier=episodic&tier=core", {"talk"}),
        ("kind=decision", {"plan"}),
        ("kind=decision&kind=fact", {"plan", "fact", "own"}),
        ("session_id=s", {"talk"}),
        ("user_id=u", {"own"}),
        ("agent_id=a", {"own"}),
        ("project=p", {"own"}),
        ("category=decisions", {"plan"}),
        ("min_salience=0.9", {"talk", "plan", "own"}),
        ("user_id=nobody", set()),
        ("namespace=n", {"other"}),
    ],
)
def test_a_list_holds_what_fits_all_that_is_given(host: Mounted, query: str, found: set[str]) -> None:
    host.add("fact", salience=0.5)
    host.post("/api/memory/messages", {"session_id": "s", "role": "user", "content": "talk"})
    host.add("plan", kind="decision")
    host.add("own", user_id="u", agent_id="a", project="p")
    host.add("other", namespace="n")
    told = shaped(models.EntryPage, host.ask("GET", f"/api/memory?{query}"))
    assert {entry["content"] for entry in told["entries"]} == found


def test_archived_entries_are_listed_when_asked_for(host: Mounted) -> None:
    for n in range(10):
        host.post("/api/memory/messages", {"session_id": "s", "role": "user", "content": f"Boat {n} is blue."})
    host.post("/api/memory/clean", {"session_id": "s"})
    assert len(host.ask("GET", "/api/memory?kind=message").json["entries"]) == 5
    assert len(host.ask("GET", "/api/memory?kind=message&include_archived=true").json["entries"]) == 10


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=two", "limit"),
        ("limit=1&limit=2", "limit"),
        ("tier=basement", "tier"),
        ("kind=", "kind"),
        ("colour=blue", "colour"),
        ("include_archived=perhaps", "include_archived"),
        ("occurred_from=yesterday", "occurred_from"),
        ("namespace=", "namespace"),
    ],
)
def test_a_wrong_query_string_is_400_and_names_the_parameter(quiet: Mounted, query: str, field: str) -> None:
    answer = quiet.ask("GET", f"/api/memory?{query}")
    assert (answer.status_code, answer.json["field"]) == (400, field), answer.text


# ---------------------------------------------------------------- looking and changing


def test_looking_at_an_entry_counts_as_a_use(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.")
    host.ask("GET", f"/api/memory/{entry_id}")
    host.af.memory.close()  # writes what was counted
    assert host.af.backend.get([entry_id])[0].access_count == 1


def test_a_change_keeps_the_former_state_in_the_history(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.", title="Drinks")
    changed = host.ask("PATCH", f"/api/memory/{entry_id}", json={"content": "Aino prefers coffee."})
    told = shaped(models.Entry, changed)
    assert (told["content"], told["title"], told["version"], changed.headers["ETag"]) == (
        "Aino prefers coffee.",
        "Drinks",
        2,
        '"2"',
    )
    history = shaped(models.Versions, host.ask("GET", f"/api/memory/{entry_id}/history"))
    assert [(v["content"], v["version"]) for v in history["versions"]] == [("Aino prefers tea.", 1)]


def test_null_takes_away_what_may_be_missing(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.", project="p", metadata={"a": 1}, occurred_at="2026-01-02T03:04:05Z")
    told = host.ask("PATCH", f"/api/memory/{entry_id}", json={"project": None, "metadata": None, "occurred_at": None})
    assert (told.json["project"], told.json["metadata"], told.json["occurred_at"]) == (None, {}, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "changes"),
        ({"content": None}, "content"),
        ({"content": " "}, "content"),
        ({"namespace": "b"}, "namespace"),
        ({"version": 7}, "version"),
        ({"kind": "page"}, "kind"),
        ({"salience": -1}, "salience"),
    ],
)
def test_a_wrong_change_is_400_and_changes_nothing(host: Mounted, body: dict[str, Any], field: str) -> None:
    entry_id = host.add("Aino prefers tea.")
    answer = host.ask("PATCH", f"/api/memory/{entry_id}", json=body)
    assert (answer.status_code, answer.json["field"]) == (400, field), answer.text
    assert host.af.backend.get([entry_id])[0].version == 1


def test_what_is_forgotten_is_gone(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.")
    gone = host.ask("DELETE", f"/api/memory/{entry_id}")
    assert (gone.status_code, gone.data) == (204, b"")
    assert host.ask("GET", f"/api/memory/{entry_id}").status_code == 404
    assert host.ask("DELETE", f"/api/memory/{entry_id}").status_code == 404


# ---------------------------------------------------------------- If-Match


@pytest.mark.parametrize("header", ['"2"', "2", "*", ' "2" ', '"1", "2"', '"other" ,"2"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_the_version_that_is_there_may_be_changed(host: Mounted, header: str, method: str) -> None:
    entry_id = host.add("One.")
    host.ask("PATCH", f"/api/memory/{entry_id}", json={"content": "Two."})
    body = {"json": {"content": "Three."}} if method == "PATCH" else {}
    answer = host.ask(method, f"/api/memory/{entry_id}", headers={"If-Match": header}, **body)
    assert answer.status_code == (200 if method == "PATCH" else 204), answer.text


@pytest.mark.parametrize("header", ['"1"', "1", 'W/"2"', '"02"', '"1", "3"', '""', '"abc"', '"' + "9" * 500 + '"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_another_version_is_412_and_tells_the_one_that_is_there(host: Mounted, header: str, method: str) -> None:
    entry_id = host.add("One.")
    host.ask("PATCH", f"/api/memory/{entry_id}", json={"content": "Two."})
    body = {"json": {"content": "Three."}} if method == "PATCH" else {}
    answer = host.ask(method, f"/api/memory/{entry_id}", headers={"If-Match": header}, **body)
    assert (answer.status_code, answer.content_type) == (412, "application/problem+json")
    assert answer.json["type"] == "urn:agentformer:problem:precondition-failed"
    assert (answer.json["version"], answer.headers["ETag"]) == (2, '"2"')
    (entry,) = host.af.backend.get([entry_id])
    assert (entry.content, entry.version) == ("Two.", 2)


@pytest.mark.parametrize("header", ["", "two", '"2', "2.0", '*, "2"', "-1", '"2" "3"', '"2",', "\x00"])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_header_that_is_no_version_is_400(host: Mounted, header: str, method: str) -> None:
    entry_id = host.add("One.")
    body = {"json": {"content": "Two."}} if method == "PATCH" else {}
    answer = host.ask(method, f"/api/memory/{entry_id}", headers={"If-Match": header}, **body)
    assert (answer.status_code, answer.json["field"]) == (400, "If-Match"), answer.text
    assert host.af.backend.get([entry_id])[0].version == 1


def test_of_two_who_want_one_version_one_comes_through(host: Mounted) -> None:
    """A change and a deletion have both seen that the version is right before either can write."""
    ids = [host.add(f"Fact number {n}.") for n in range(8)]
    statuses: dict[tuple[str, str], int] = {}

    def act(method: str, entry_id: str) -> None:
        body = {"json": {"content": "Changed."}} if method == "PATCH" else {}
        path, headers = f"/m/api/memory/{entry_id}", {"If-Match": '"1"'}
        statuses[entry_id, method] = (
            host.app.test_client().open(path, method=method, headers=headers, **body).status_code
        )

    threads = [threading.Thread(target=act, args=(method, each)) for each in ids for method in ("PATCH", "DELETE")]
    blocker = sqlite3.connect(host.af.settings.index_dir / "memory.sqlite3", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    for thread in threads:
        thread.start()
    time.sleep(1)  # for all to come as far as the lock
    blocker.close()
    for thread in threads:
        thread.join(60)
    for entry_id in ids:
        changed, gone = statuses[entry_id, "PATCH"], statuses[entry_id, "DELETE"]
        assert (changed, gone) == (200, 412) or (changed in (404, 412) and gone == 204)
        assert [entry.content for entry in host.af.backend.get([entry_id])] == (["Changed."] if gone == 412 else [])


# ---------------------------------------------------------------- documents


def test_parts_of_documents_are_read_here_and_changed_elsewhere(host: Mounted) -> None:
    host.af.rag.upload(b"The keys hang in the cupboard.", name="keys.txt")
    for kind in ("document", "page", "chunk"):
        (part,) = host.ask("GET", f"/api/memory?kind={kind}").json["entries"]
        assert shaped(models.Entry, host.ask("GET", f"/api/memory/{part['id']}"))["kind"] == kind
        for header in ({}, {"If-Match": '"1"'}):
            for method, body in (("PATCH", {"json": {"content": "No."}}), ("DELETE", {})):
                answer = host.ask(method, f"/api/memory/{part['id']}", headers=header, **body)
                assert (answer.status_code, answer.json["type"]) == (400, "urn:agentformer:problem:invalid-input")
        assert host.af.backend.get([part["id"]])[0].version == 1


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("search", "OPTIONS, POST"),
        ("batch", "OPTIONS, POST"),
        ("context", "OPTIONS, POST"),
        ("clean", "OPTIONS, POST"),
        ("restore", "OPTIONS, POST"),
        ("reindex", "OPTIONS, POST"),
        ("audit", "GET, HEAD, OPTIONS"),
        ("core", "GET, HEAD, OPTIONS"),
        ("messages", "GET, HEAD, OPTIONS, POST"),
    ],
)
def test_no_fixed_path_is_taken_for_an_id(quiet: Mounted, path: str, allowed: str) -> None:
    for method in {"GET", "PATCH", "DELETE", "PUT"} - set(allowed.split(", ")):
        answer = quiet.ask(method, f"/api/memory/{path}")
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed), (method, answer.text)


@pytest.mark.parametrize("entry_id", ["no-such-id", "%00", "..%5C..", "%F0%9F%98%80", "%ED%A0%80", "' OR 1=1"])
def test_an_id_that_nothing_has_is_404(busy: Mounted, entry_id: str) -> None:
    assert busy.ask("GET", f"/api/memory/{entry_id}").status_code == 404


def test_an_id_that_none_can_have_is_400(quiet: Mounted) -> None:
    for entry_id in ("x" * 201, "%20"):
        assert quiet.ask("GET", f"/api/memory/{entry_id}").status_code == 400
