"""What belongs to a user, through HTTP and the command line: upload, list, ask, export, forget."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.records.integrity.disk import holders
from agentformer.records.trail import Wanted
from tests.edges.conftest import Invoke, Shown
from tests.edges.mounted import Mounted, grant, mounted

HOSTILE = "../ö\"; filename=x'\u202e"
HERON = b"The heron zyxquorum sleeps by the weir."


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as opened:
        yield opened


def upload(host: Mounted, data: bytes, name: str, headers: dict[str, str] | None = None, **form: str) -> Any:
    given = {"file": [(io.BytesIO(data), name)], **form}
    return host.ask("POST", "/api/rag/upload", data=given, headers=headers)


def names(host: Mounted, **query: str) -> list[tuple[str | None, str]]:
    listed = host.ask("GET", "/api/rag/documents", query_string=query).json["documents"]
    return [(document["user_id"], document["name"]) for document in listed]


def test_documents_of_users_over_http(host: Mounted) -> None:
    made = upload(host, HERON, "a.txt", user_id=HOSTILE).json["documents"][0]
    assert (made["user_id"], made["status"]) == (HOSTILE, "ready")
    assert upload(host, HERON, "a.txt", user_id="väinö").json["documents"][0]["unchanged"] is False
    upload(host, b"The stork sleeps.", "a.txt")
    assert names(host) == [(HOSTILE, "a.txt"), ("väinö", "a.txt"), (None, "a.txt")]
    assert names(host, user_id=HOSTILE) == [(HOSTILE, "a.txt")]
    blind = upload(host, HERON, "b.txt", user_id="aino")
    assert blind.json["documents"][0]["user_id"] == "aino"
    question = {"question": "Where does the heron sleep?"}
    quoted = {
        user: "zyxquorum" in host.post("/api/rag/query", {**question, "user_id": user}).text
        for user in (HOSTILE, "other", None)
    }
    assert quoted == {HOSTILE: True, "other": False, None: False}
    asked = {**question, "document_id": made["id"]}
    assert "zyxquorum" in host.post("/api/rag/query", asked).text
    assert host.post("/api/rag/query", {**asked, "user_id": "väinö"}).status_code == 404
    found = host.post("/api/memory/search", {"text": "zyxquorum", "user_id": HOSTILE}).json["hits"]
    assert [(hit["kind"], hit["user_id"]) for hit in found] == [("chunk", HOSTILE)]
    refused = upload(host, HERON, "a.txt", user_id=" ")
    assert refused.status_code == 400 and refused.json["field"] == "user_id"


def test_a_user_is_exported_as_an_archive_and_imported_again(host: Mounted, tmp_path: Path, run: Invoke) -> None:
    upload(host, HERON, "a.txt", user_id=HOSTILE)
    upload(host, b"The stork of another one.", "b.txt", user_id="other")
    host.add("The heron flies at noon.", user_id=HOSTILE)
    answer = host.ask("GET", "/api/memory/export", query_string={"user_id": HOSTILE})
    assert answer.status_code == 200 and answer.content_type == "application/zip"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="export.zip"'
    assert len(answer.data) == int(answer.headers["Content-Length"])
    with zipfile.ZipFile(io.BytesIO(answer.data)) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
        assert [name.partition("/")[0] for name in archive.namelist()] == ["entries", "manifest.json", "originals"]
    assert HERON in content and b"flies at noon" in content and b"stork" not in content
    acts = [(act.action, act.subject, act.namespace) for act in host.af.trail.page(Wanted(subject=HOSTILE))]
    assert acts == [("user-exported", HOSTILE, "default")]
    host.post("/api/memory/remove", {"user_id": HOSTILE})
    assert names(host) == [("other", "b.txt")]
    (tmp_path / "export.zip").write_bytes(answer.data)
    assert run("import", str(tmp_path / "export.zip")).exit_code == 0
    assert (HOSTILE, "a.txt") in names(host)
    for user, key, status in (
        ("nobody", None, 404), (HOSTILE, grant("read", "write"), 403), (HOSTILE, grant("admin", only=("lab",)), 404)
    ):  # fmt: skip
        assert host.ask("GET", "/api/memory/export", key, query_string={"user_id": user}).status_code == status
    assert host.ask("GET", "/api/memory/export").status_code == 400


def test_a_forgotten_user_is_gone_with_uploads_that_were_accepted_alone(host: Mounted, tmp_path: Path) -> None:
    upload(host, HERON, "a.txt", user_id="aino")
    job = upload(host, HERON + b" Twice.", "zyxquorum.txt", {"Prefer": "respond-async"}, user_id="aino")
    assert job.status_code == 202
    host.add("zyxquorum is a word.", user_id="aino")
    host.add("zyxquorum is a word.", user_id="aino", namespace="other")
    upload(host, b"The stork sleeps.", "b.txt")
    assert host.post("/api/memory/remove", {"user_id": "aino", "ids": ["x"]}).status_code == 400
    for nothing in ({"ids": []}, {"source_ids": []}, {"where": {}}):  # a client that found nothing to delete
        assert host.post("/api/memory/remove", {"user_id": "aino", **nothing}).status_code == 400
    asking = grant("read", "write", without=("memory_delete",))
    assert host.post("/api/memory/remove", {"user_id": "aino"}, asking).status_code == 403
    removed = host.post("/api/memory/remove", {"user_id": "aino"})
    assert removed.status_code == 200 and removed.json["count"] >= 4
    assert names(host) == [(None, "b.txt")]
    assert host.ask("GET", "/api/jobs").json["jobs"] == []
    assert host.post("/api/memory/remove", {"user_id": "aino", "namespace": "other"}).json["count"] == 1
    assert holders((tmp_path / "i", tmp_path / "u"), "zyxquorum") == []
    assert host.post("/api/memory/remove", {"user_id": "aino"}).json == {"count": 0}


def test_the_command_line_has_the_same_calls(run: Invoke, shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(HERON)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "b.md").write_text("The stork sleeps by the mill.")
    assert run("ingest", str(tmp_path / "a.txt"), "--user", "aino").exit_code == 0
    assert run("sync", str(tmp_path / "notes"), "--user", "aino").exit_code == 0
    assert run("sync", str(tmp_path / "notes")).exit_code == 0
    assert run("remember", "The heron flies at noon.", "--user", "aino", "--namespace", "other").exit_code == 0
    assert run("remember", "The heron flies at noon.", "--user", "aino").exit_code == 0
    listed = shown("list", "--user", "aino")["documents"]
    assert [(each["user_id"], each["name"]) for each in listed] == [
        ("aino", "a.txt"), ("aino", "b.md"), (None, "b.md")
    ]  # fmt: skip
    assert len(shown("list", "--user", "väinö")["documents"]) == 1
    table = run("list").output
    assert "aino" in table and "a.txt" in table and "aino" not in run("list", "--user", "väinö").output
    assert "weir" in run("ask", "Where does the heron sleep?", "--user", "aino", "--documents").output
    assert "weir" not in run("ask", "Where does the heron sleep?", "--user", "väinö", "--documents").output
    export = tmp_path / "export"
    assert shown("export", "--to", str(export), "--user", "aino")["originals"] == 2
    assert json.loads((export / "manifest.json").read_text())["user_id"] == "aino"
    for wrong in (("--text",), ("--markdown", str(tmp_path / "m"))):
        refused = run("export", "--user", "aino", *wrong)
        assert refused.exit_code == 2 and "--user" in refused.output
    assert run("export", "--to", str(tmp_path / "v"), "--user", "aino", "--vectors").exit_code == 2
    asked = run("forget", "--user", "aino")
    assert asked.exit_code == 2 and "entries, with 2 documents" in asked.output
    done = run("forget", "--user", "aino", "--yes", "--json")
    assert json.loads(done.stdout)["jobs"] == 0 and json.loads(done.stdout)["forgotten"] > 4
    assert "also has entries in: other" in done.stderr
    assert [each["user_id"] for each in shown("list")["documents"]] == [None]
    assert holders((tmp_path / "i", tmp_path / "u"), "zyxquorum") == []
    assert run("import", str(export)).exit_code == 0
    assert len(shown("list", "--user", "aino")["documents"]) == 3
    home = tmp_path / "home"
    assert run("export", "--markdown", str(home)).exit_code == 0
    refused = run("sync", str(home), "--user", "aino")
    assert refused.exit_code == 2 and "memory home" in refused.output
