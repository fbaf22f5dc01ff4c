"""The deletion of a document that can be undone: hidden at once, kept by the undo, deleted by the server."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.app import close_app, create_app
from agentformer.api.endpoints import uploads
from agentformer.api.models.documents import Removal, Removals
from agentformer.errors import StoreBusy
from agentformer.settings import load_settings
from tests.edges.mounted import grant, mounted, shaped
from tests.edges.running import Running, wait_until
from tests.faults.long_form import LONG

TEXT = b"The keys of the boat house are held by Aino."


@pytest.fixture
def apps(tmp_path: Path) -> Iterator[Any]:
    """Starts a server on the same folders, and stops the former one."""
    opened: list[Any] = []

    def start() -> Any:
        stop()
        where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing", "clean_every": 0}
        opened.append(create_app(load_settings(where)))
        return opened[-1]

    def stop() -> None:
        while opened:
            close_app(opened.pop())

    yield start
    stop()


def names(client: Any) -> list[str]:
    return [document["name"] for document in client.get("/api/rag/documents").json["documents"]]


def finds(client: Any) -> bool:
    """Whether answers, searches, contexts, tools, counts and lists contain the document: all of them, or none."""
    asked = {"question": "Who holds the keys of the boat house?"}

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.post(path, json=body).json

    found = {
        "answer": post("/api/rag/query", asked)["citations"],
        "passages": post("/api/rag/context", asked)["passages"],
        "search": post("/api/memory/search", {"text": "keys boat house"})["hits"],
        "context": post("/api/memory/context", {"task": asked["question"]})["report"]["included"]["semantic"],
        "count": post("/api/memory/count", {"kinds": ["chunk"]})["count"],
        "answer of a tool": post("/api/tools/rag_query", asked)["result"]["citations"],
        "search of a tool": post("/api/tools/memory_search", {"query": "keys boat house"})["result"]["memories"],
        "list": client.get("/api/memory").json["entries"],
    }
    assert len({bool(value) for value in found.values()}) == 1, found
    return bool(found["answer"])


def test_a_document_is_hidden_at_once_and_comes_back(apps: Any) -> None:
    app = apps()
    client = app.test_client()
    document = app.extensions["agentformer"].rag.upload(TEXT, name="rules.txt")
    path = f"/api/rag/documents/{document.id}"
    assert finds(client)
    left = shaped(Removal, client.delete(f"{path}?undo_seconds=600"), 202)["seconds_left"]
    assert 590 < left <= 600
    assert (names(client), finds(client)) == ([], False)
    (removal,) = shaped(Removals, client.get("/api/rag/removals"))["removals"]
    assert (removal["id"], removal["name"]) == (document.id, "rules.txt")
    assert client.delete(f"/api/rag/removals/{document.id}").status_code == 204
    assert (names(client), finds(client)) == (["rules.txt"], True)
    assert client.get("/api/rag/removals").json["removals"] == []
    assert client.delete(f"/api/rag/removals/{document.id}").status_code == 404
    assert client.get(path).json["status"] == "ready"


def test_neither_the_deletion_nor_the_undo_needs_the_process_that_was_asked(apps: Any) -> None:
    app = apps()
    rag = app.extensions["agentformer"].rag
    kept, lost = (rag.upload(TEXT + bytes([65 + n]), name=f"{n}.txt") for n in range(2))
    client = app.test_client()
    assert client.delete(f"/api/rag/documents/{kept.id}?undo_seconds=600").status_code == 202
    assert client.delete(f"/api/rag/documents/{lost.id}?undo_seconds=1").status_code == 202
    client = apps().test_client()
    assert names(client) == []
    assert client.delete(f"/api/rag/removals/{kept.id}").status_code == 204
    wait_until(lambda: client.get(f"/api/rag/documents/{lost.id}").status_code == 404)
    assert names(client) == ["0.txt"]
    assert client.delete(f"/api/rag/removals/{lost.id}").status_code == 404


def test_a_file_that_is_uploaded_again_is_kept(apps: Any) -> None:
    app = apps()
    rag, client = app.extensions["agentformer"].rag, app.test_client()
    first = rag.upload(TEXT, name="rules.txt")
    client.delete(f"/api/rag/documents/{first.id}?undo_seconds=2")
    again = rag.upload(TEXT, name="rules.txt")
    assert not again.unchanged and again.id != first.id
    undone = client.delete(f"/api/rag/removals/{first.id}")
    assert undone.status_code == 409 and "uploaded again" in undone.json["detail"]
    wait_until(lambda: client.get(f"/api/rag/documents/{first.id}").status_code == 404)
    assert (names(client), finds(client)) == (["rules.txt"], True)
    assert client.get(f"/api/rag/documents/{again.id}/content").data == TEXT
    assert app.extensions["agentformer"].verify() and client.get("/api/rag/removals").json["removals"] == []


def test_a_document_of_another_path_does_not_prevent_the_undo(apps: Any, tmp_path: Path) -> None:
    app = apps()
    rag, client = app.extensions["agentformer"].rag, app.test_client()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rules.txt").write_bytes(TEXT + folder.encode())
    first = rag.upload(tmp_path / "a" / "rules.txt")
    client.delete(f"/api/rag/documents/{first.id}?undo_seconds=600")
    assert rag.upload(tmp_path / "b" / "rules.txt").name == "b/rules.txt"
    assert client.delete(f"/api/rag/removals/{first.id}").status_code == 204
    assert sorted(names(client)) == ["b/rules.txt", "rules.txt"]
    client.delete(f"/api/rag/documents/{first.id}?undo_seconds=600")
    rag.upload(tmp_path / "a" / "rules.txt")
    assert client.delete(f"/api/rag/removals/{first.id}").status_code == 409


def test_the_doctor_finds_nothing_wrong_with_a_hidden_document(apps: Any) -> None:
    app = apps()
    document = app.extensions["agentformer"].rag.upload(TEXT, name="rules.txt")
    app.test_client().delete(f"/api/rag/documents/{document.id}?undo_seconds=600")
    assert [check.name for check in app.extensions["agentformer"].verify() if check.found] == []


@pytest.mark.parametrize("seconds", ["0", "-1", "90000", "soon"])
def test_a_wrong_time_deletes_nothing(apps: Any, seconds: str) -> None:
    app = apps()
    document = app.extensions["agentformer"].rag.upload(TEXT, name="rules.txt")
    answer = app.test_client().delete(f"/api/rag/documents/{document.id}?undo_seconds={seconds}")
    assert (answer.status_code, answer.json["field"]) == (400, "undo_seconds")
    assert names(app.test_client()) == ["rules.txt"]


def test_a_key_sees_and_keeps_only_what_is_in_its_namespaces(tmp_path: Path) -> None:
    with mounted(tmp_path) as host:
        document = host.af.rag.upload(TEXT, name="rules.txt", namespace="a")
        other = grant("read", "write", only=("b",))
        host.ask("DELETE", f"/api/rag/documents/{document.id}?undo_seconds=600")
        assert host.ask("GET", "/api/rag/removals", other).json["removals"] == []
        assert host.ask("DELETE", f"/api/rag/removals/{document.id}", other).status_code == 404
        assert host.ask("GET", "/api/rag/removals?namespace=a").json["removals"][0]["name"] == "rules.txt"


@pytest.mark.fault
@pytest.mark.process
@pytest.mark.skipif(not LONG, reason="FAULTS_LONG=1 kills the server after a deletion")
def test_a_deletion_survives_a_killed_server(tmp_path: Path) -> None:
    first = Running(tmp_path)
    try:
        assert first.upload("rules.txt", TEXT.decode())[0] == 201
        (document,) = first.ask("GET", "/api/rag/documents")[1]["documents"]
        assert first.ask("DELETE", f"/api/rag/documents/{document['id']}?undo_seconds=2")[0] == 202
        first.end(signal.SIGKILL)
    finally:
        first.close()
    again = Running(tmp_path)
    try:
        wait_until(lambda: again.ask("GET", f"/api/rag/documents/{document['id']}")[0] == 404)
        assert again.documents() == []
    finally:
        again.close()


NEW = b"The keys of the shed are held by Matti."


def upload(client: Any, data: bytes, conflict: str = "replace-with-undo", **headers: str) -> Any:
    form = {"file": (io.BytesIO(data), "rules.txt"), "on_conflict": conflict}
    return client.post("/api/rag/upload", data=form, content_type="multipart/form-data", headers=headers)


def told(client: Any) -> str:
    """All that the server finds about the keys."""
    found = client.post("/api/memory/search", json={"text": "keys held boat house shed Aino Matti"}).json["hits"]
    return "".join(hit["content"] for hit in found)


def originals(client: Any) -> list[bytes]:
    documents = client.get("/api/rag/documents").json["documents"]
    return [client.get(f"/api/rag/documents/{each['id']}/content").data for each in documents]


@pytest.mark.parametrize("headers", [{}, {"Prefer": "respond-async"}], ids=["at once", "in a job"])
def test_a_replacement_is_undone_and_the_former_version_is_whole(apps: Any, headers: dict[str, str]) -> None:
    client = apps().test_client()
    first = upload(client, TEXT).json["documents"][0]["id"]
    made = upload(client, NEW, **headers)
    if headers:
        job = f"/api/jobs/{made.json['id']}"
        wait_until(lambda: client.get(job).json["state"] == "done")
        made = client.get(job)
    (new,) = made.json["documents"]
    assert (new["replaced"], names(client), originals(client)) == (first, ["rules.txt"], [NEW])
    (removal,) = shaped(Removals, client.get("/api/rag/removals"))["removals"]
    assert (removal["id"], removal["replaced_by"]) == (first, new["id"])
    assert 0 < removal["seconds_left"] <= 30
    assert "Aino" not in told(client)
    assert client.delete(f"/api/rag/removals/{first}").status_code == 204
    assert (names(client), originals(client)) == (["rules.txt"], [TEXT])
    assert "Aino" in told(client) and "Matti" not in told(client)
    assert client.get(f"/api/rag/documents/{new['id']}").status_code == 404


def test_a_replacement_without_undo_deletes_the_former_version_at_once(apps: Any) -> None:
    client = apps().test_client()
    first = upload(client, TEXT, "replace").json["documents"][0]["id"]
    assert upload(client, NEW, "replace").json["documents"][0]["replaced"] == first
    assert client.get("/api/rag/removals").json["removals"] == []
    assert client.get(f"/api/rag/documents/{first}").status_code == 404


def test_the_former_version_of_an_unusable_file_needs_no_undo(apps: Any) -> None:
    client = apps().test_client()
    upload(client, TEXT)
    (failed,) = upload(client, b"\0" * 9000).json["documents"]
    assert (failed["status"], failed["reason_code"], failed["former_kept"]) == ("failed", "empty", True)
    assert (originals(client), client.get("/api/rag/removals").json["removals"]) == ([TEXT], [])


def test_the_former_version_is_deleted_when_the_time_is_over(apps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UNDO_SECONDS", 0)
    client = apps().test_client()
    first = upload(client, TEXT).json["documents"][0]["id"]
    upload(client, NEW)
    wait_until(lambda: client.get(f"/api/rag/documents/{first}").status_code == 404)
    assert originals(client) == [NEW] and "Aino" not in told(client)


def test_a_replacement_that_was_interrupted_is_completed_by_the_next_attempt(apps: Any) -> None:
    app = apps()
    client, rag = app.test_client(), app.extensions["agentformer"].rag
    first = upload(client, TEXT).json["documents"][0]["id"]

    def interrupted(former: Any, new: str) -> None:
        raise StoreBusy("the store is busy")

    with pytest.raises(StoreBusy):
        rag.upload(NEW, name="rules.txt", retire=interrupted)
    assert sorted(originals(client)) == sorted([TEXT, NEW])  # no version is lost
    (again,) = upload(client, NEW).json["documents"]
    assert (again["unchanged"], originals(client)) == (True, [NEW])
    assert client.delete(f"/api/rag/removals/{first}").status_code == 204
    assert originals(client) == [TEXT]


def test_equal_names_in_one_upload_are_kept_and_replace_nothing(apps: Any) -> None:
    client = apps().test_client()
    upload(client, TEXT)
    files = [(io.BytesIO(data), "rules.txt") for data in (NEW, b"The third.", b"The fourth.")]
    form = {"file": files, "on_conflict": "replace-with-undo"}
    made = client.post("/api/rag/upload", data=form, content_type="multipart/form-data").json["documents"]
    assert [each["name"] for each in made] == ["rules.txt", "rules (2).txt", "rules (3).txt"]
    assert len(client.get("/api/rag/removals").json["removals"]) == 1


def test_a_key_that_may_only_write_replaces_with_undo_and_learns_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path) as host:
        writer = grant("write")
        made = [
            host.ask(
                "POST",
                "/api/rag/upload",
                writer,
                data={"file": (io.BytesIO(data), "rules.txt"), "on_conflict": "replace-with-undo"},
            ).json["documents"][0]
            for data in (TEXT, NEW, TEXT)
        ]
        assert all((each["id"], each["replaced"], each["former_kept"]) == ("", "", False) for each in made)
        (removal, *_) = host.ask("GET", "/api/rag/removals").json["removals"]
        assert host.ask("GET", "/api/rag/removals", writer).status_code == 403
        assert host.ask("DELETE", f"/api/rag/removals/{removal['id']}", writer).status_code == 403
