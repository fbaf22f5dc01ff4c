"""Single memories over HTTP: store, list, read, change, delete."""

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


# ---------------------------------------------------------------- adding


def test_a_stored_memory_is_at_its_location_with_its_version(host: Mounted) -> None:
    made = host.post("/api/memory", {"content": "Aino prefers tea.", "title": "Tea", "metadata": {"a": [1, None]}})
    entry = shaped(models.Entry, made, 201)
    assert made.headers["Location"] == f"/m/api/memory/{entry['id']}" and made.headers["ETag"] == '"1"'
    found = host.client.get(made.headers["Location"])
    assert shaped(models.Entry, found)["metadata"] == {"a": [1, None]} and found.headers["ETag"] == '"1"'
    assert (found.json["namespace"], found.json["tier"], found.json["kind"]) == ("default", "semantic", "fact")


def test_every_argument_of_store_is_accepted(host: Mounted) -> None:
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


def test_the_same_fact_again_is_200_with_the_existing_entry(host: Mounted) -> None:
    first = host.post("/api/memory", {"content": "Aino prefers tea."})
    again = host.post("/api/memory", {"content": "Aino prefers tea."})
    told = shaped(models.Entry, again)
    assert (told["id"], told["repeat_count"]) == (first.json["id"], 1)
    assert again.headers["Location"] == first.headers["Location"]


def test_a_batch_is_stored_completely_or_not_at_all(host: Mounted) -> None:
    items = [{"content": "One."}, {"content": "Two.", "namespace": "n"}]
    told = shaped(models.Entries, host.post("/api/memory/batch", {"items": items}), 201)
    assert [(e["content"], e["namespace"]) for e in told["entries"]] == [("One.", "default"), ("Two.", "n")]
    wrong = host.post("/api/memory/batch", {"items": [{"content": "Three."}, {"content": "4", "occurred_at": "now"}]})
    assert (wrong.status_code, wrong.json["field"]) == (400, "items[1].occurred_at")
    assert [entry.content for entry in host.af.memory.list()] == ["One."]


def test_a_batch_of_texts_is_told_what_an_item_is(host: Mounted) -> None:
    for body, field in (({"items": ["plain"]}, "items[0]"), ({"items": []}, "items"), (["plain"], "body")):
        answer = host.post("/api/memory/batch", body)
        assert (answer.status_code, answer.json["field"]) == (400, field)
        assert '{"content": "Aino prefers tea."}' in answer.json["detail"]


def test_a_batch_with_a_forbidden_namespace_stores_nothing(host: Mounted) -> None:
    items = [{"content": "One.", "namespace": "a"}, {"content": "Two.", "namespace": "b"}]
    assert host.post("/api/memory/batch", {"items": items}, ADMIN_A).status_code == 403
    assert host.af.backend.namespaces() == []


def test_invalid_memories_are_400_and_name_the_field(quiet: Mounted) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"content": " \n"}, "content"),
        ({"content": "x", "kind": "document"}, "kind"),
        ({"content": "x", "tier": "working"}, "session_id"),
        ({"content": "x", "occurred_at": "2026-01-02"}, "occurred_at"),
        ({"content": "x", "source_id": "7"}, "source_id"),
        ({"content": "x" * 1_000_001}, "content"),
        ({"content": "x", "metadata": {"a": int("9" * 400)}}, "metadata"),
    ]
    for body, field in cases:
        answer = quiet.post("/api/memory", body)
        assert (answer.status_code, answer.json["field"]) == (400, field), answer.text
        assert len(answer.data) < 1000
    assert quiet.af.backend.namespaces() == []


# ---------------------------------------------------------------- listing


def test_pages_of_a_list_have_each_entry_once(host: Mounted) -> None:
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


def test_a_full_last_page_has_no_next(host: Mounted) -> None:
    ids = [host.add(f"Fact number {n}.") for n in range(2)]
    page = host.ask("GET", "/api/memory?limit=2").json
    assert ([entry["id"] for entry in page["entries"]], page["next"]) == (ids, None)


def test_a_list_has_the_entries_that_match_all_parameters(host: Mounted) -> None:
    host.add("fact", salience=0.5)
    host.post("/api/memory/messages", {"session_id": "s", "role": "user", "content": "talk"})
    host.add("plan", kind="decision")
    host.add("own", user_id="u", agent_id="a", project="p")
    host.add("other", namespace="n")
    cases = {
        "": {"fact", "talk", "plan", "own"},
        "tier=episodic": {"talk"},
        "tier=episodic&tier=core": {"talk"},
        "kind=decision": {"plan"},
        "kind=decision&kind=fact": {"plan", "fact", "own"},
        "session_id=s": {"talk"},
        "user_id=u": {"own"},
        "agent_id=a": {"own"},
        "project=p": {"own"},
        "category=decisions": {"plan"},
        "min_salience=0.9": {"talk", "plan", "own"},
        "user_id=nobody": set(),
        "namespace=n": {"other"},
    }
    for query, contents in cases.items():
        page = shaped(models.EntryPage, host.ask("GET", f"/api/memory?{query}"))
        assert {entry["content"] for entry in page["entries"]} == contents, query


def test_archived_entries_are_listed_on_request(host: Mounted) -> None:
    for n in range(10):
        host.post("/api/memory/messages", {"session_id": "s", "role": "user", "content": f"Boat {n} is blue."})
    host.post("/api/memory/clean", {"session_id": "s"})
    assert len(host.ask("GET", "/api/memory?kind=message").json["entries"]) == 5
    assert len(host.ask("GET", "/api/memory?kind=message&include_archived=true").json["entries"]) == 10


# ---------------------------------------------------------------- looking and changing


def test_reading_an_entry_counts_as_a_use(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.")
    host.ask("GET", f"/api/memory/{entry_id}")
    host.af.memory.close()  # writes what was counted
    assert host.af.backend.get([entry_id])[0].access_count == 1


def test_a_change_keeps_the_former_version_in_the_history(host: Mounted) -> None:
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


def test_null_deletes_optional_fields(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.", project="p", metadata={"a": 1}, occurred_at="2026-01-02T03:04:05Z")
    told = host.ask("PATCH", f"/api/memory/{entry_id}", json={"project": None, "metadata": None, "occurred_at": None})
    assert (told.json["project"], told.json["metadata"], told.json["occurred_at"]) == (None, {}, None)


def test_an_invalid_change_is_400_and_changes_nothing(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.")
    for body, field in (({}, "changes"), ({"content": " "}, "content"), ({"kind": "page"}, "kind")):
        answer = host.ask("PATCH", f"/api/memory/{entry_id}", json=body)
        assert (answer.status_code, answer.json["field"]) == (400, field), answer.text
    assert host.af.backend.get([entry_id])[0].version == 1


def test_a_deleted_entry_is_not_found(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.")
    gone = host.ask("DELETE", f"/api/memory/{entry_id}")
    assert (gone.status_code, gone.data) == (204, b"")
    assert host.ask("GET", f"/api/memory/{entry_id}").status_code == 404
    assert host.ask("DELETE", f"/api/memory/{entry_id}").status_code == 404


# ---------------------------------------------------------------- If-Match


def changed(host: Mounted, method: str, entry_id: str, header: str) -> Any:
    body = {"json": {"content": "Three."}} if method == "PATCH" else {}
    return host.ask(method, f"/api/memory/{entry_id}", headers={"If-Match": header}, **body)


def test_the_current_version_may_be_changed(host: Mounted) -> None:
    for method, status in (("PATCH", 200), ("DELETE", 204)):
        for header in ('"2"', "2", "*", ' "2" ', '"1", "2"', '"other" ,"2"'):
            entry_id = host.add(f"One, {method}, {header}.")
            host.ask("PATCH", f"/api/memory/{entry_id}", json={"content": "Two."})
            answer = changed(host, method, entry_id, header)
            assert answer.status_code == status, (header, answer.text)


def test_another_version_is_412_with_the_current_one(host: Mounted) -> None:
    entry_id = host.add("One.")
    host.ask("PATCH", f"/api/memory/{entry_id}", json={"content": "Two."})
    for method in ("PATCH", "DELETE"):
        for header in ('"1"', "1", 'W/"2"', '"02"', '"1", "3"', '""', '"abc"', '"' + "9" * 500 + '"'):
            answer = changed(host, method, entry_id, header)
            assert (answer.status_code, answer.content_type) == (412, "application/problem+json"), header
            assert answer.json["type"] == "urn:agentformer:problem:precondition-failed"
            assert (answer.json["version"], answer.headers["ETag"]) == (2, '"2"')
    (entry,) = host.af.backend.get([entry_id])
    assert (entry.content, entry.version) == ("Two.", 2)


def test_an_invalid_if_match_header_is_400(host: Mounted) -> None:
    entry_id = host.add("One.")
    for method in ("PATCH", "DELETE"):
        for header in ("", "two", '"2', "2.0", '*, "2"', "-1", '"2" "3"', '"2",', "\x00"):
            answer = changed(host, method, entry_id, header)
            assert (answer.status_code, answer.json["field"]) == (400, "If-Match"), (header, answer.text)
    assert host.af.backend.get([entry_id])[0].version == 1


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.slow
def test_of_two_changes_to_one_version_one_succeeds(host: Mounted) -> None:
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


def test_parts_of_documents_can_be_read_but_not_changed(host: Mounted) -> None:
    host.af.rag.upload(b"The keys hang in the cupboard.", name="keys.txt")
    for kind in ("document", "page", "chunk"):
        (part,) = host.ask("GET", f"/api/memory?kind={kind}").json["entries"]
        assert shaped(models.Entry, host.ask("GET", f"/api/memory/{part['id']}"))["kind"] == kind
        for header in ({}, {"If-Match": '"1"'}):
            for method, body in (("PATCH", {"json": {"content": "No."}}), ("DELETE", {})):
                answer = host.ask(method, f"/api/memory/{part['id']}", headers=header, **body)
                assert (answer.status_code, answer.json["type"]) == (400, "urn:agentformer:problem:invalid-input")
        assert host.af.backend.get([part["id"]])[0].version == 1
