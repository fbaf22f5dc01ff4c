"""Uploads over HTTP: the status of each file, hostile names, invalid bodies, limits, and keys that may only write."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

import flask

from agentformer.api import create_app, init_app
from agentformer.api.app import close_app
from agentformer.api.endpoints import uploads as models
from agentformer.settings import load_settings
from tests.edges.mounted import Mounted, grant, mounted
from tests.readers.conftest import make_pdf

KEYS = b"The caretaker keeps the keys in the blue cupboard."
FORM = "multipart/form-data; boundary=x"
DOCUMENT = {
    *("name", "namespace", "status", "reason", "id", "pages", "chunks"),
    *("media_type", "sha256", "bytes", "unchanged", "replaced", "url", "metadata"),
    *("reason_code", "unread_pages", "former_kept", "user_id"),
}


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


def upload(client: Any, *files: tuple[bytes, str], **form: Any) -> Any:
    return client.post("/api/rag/upload", data={"file": [(io.BytesIO(data), name) for data, name in files], **form})


def part(name: str, text: bytes = KEYS, field: str = "file") -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    return head.encode() + text + b"\r\n"


def raw(client: Any, body: bytes, content_type: str | None = FORM) -> Any:
    return client.post("/api/rag/upload", data=body, content_type=content_type)


def listed(client: Any) -> list[str]:
    return [document["name"] for document in client.get("/api/rag/documents").json["documents"]]


def test_every_file_has_the_same_fields_with_any_status(client: Any) -> None:
    made = upload(client, (KEYS, "keys.txt"), (b"", "empty.txt"), (b"\0" * 9000, "zeros.bin"), (KEYS, "keys2.txt"))
    again = upload(client, (KEYS, "keys2.txt")).json["documents"][0]
    assert (again["unchanged"], again["id"]) == (True, made.json["documents"][3]["id"])
    assert made.status_code == 201
    assert [set(document) for document in made.json["documents"]] == [DOCUMENT] * 4
    assert [(d["status"], d["unchanged"]) for d in made.json["documents"]] == [
        ("ready", False),
        ("failed", False),
        ("failed", False),
        ("ready", False),
    ]
    assert all(d["reason"] for d in made.json["documents"][1:3])
    assert [d["reason_code"] for d in made.json["documents"]] == ["", "empty", "empty", ""]


def test_a_file_over_the_limit_does_not_stop_the_others(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_file_bytes=1000)
    made = upload(app.test_client(), (b"x" * 1001, "big.txt"), (KEYS, "keys.txt"))
    assert (made.status_code, [d["status"] for d in made.json["documents"]]) == (201, ["failed", "ready"])
    assert "1000 bytes" in made.json["documents"][0]["reason"]
    assert set(made.json["documents"][0]) == DOCUMENT
    close_app(app)


def test_a_hostile_file_name_is_only_a_name(client: Any, tmp_path: Path) -> None:
    """A name that must be changed gets a part of the hash of the name that the client sent."""
    names = [
        ("../../etc/passwd.txt", "etc/passwd ~{}.txt", "../../etc/passwd.txt"),
        ("..\\\\..\\\\boot.txt", "boot ~{}.txt", "..\\..\\boot.txt"),  # escaped, as a quoted string in a header is
        ("/etc/keys.txt", "keys.txt", ""),
        ("C:\\\\Users\\\\aino\\\\plan.txt", "plan.txt", ""),
        ("a\0b.txt", "ab ~{}.txt", "a\0b.txt"),
        ("\x1b[2Jkeys.txt", "[2Jkeys ~{}.txt", "\x1b[2Jkeys.txt"),
        ("n" * 300 + ".txt", "n" * 241 + " ~{}.txt", "n" * 300 + ".txt"),
        ("n" * 301 + ".txt", "n" * 241 + " ~{}.txt", "n" * 301 + ".txt"),
        ("notes/2024/rules.txt", "notes/2024/rules.txt", ""),
        ("notes/2025/rules.txt", "notes/2025/rules.txt", ""),
        ("avain 🔑.txt", "avain 🔑.txt", ""),
        ("con.txt", "con.txt", ""),
        ("' OR 1=1; --.txt", "' OR 1=1; --.txt", ""),
    ]
    before = {*tmp_path.parent.rglob("*.txt")}
    expected = [stored.format(hashlib.sha256(hashed.encode()).hexdigest()[:8]) for _, stored, hashed in names]
    for number, ((name, _, _), stored) in enumerate(zip(names, expected, strict=True)):
        made = raw(client, part(name, KEYS + str(number).encode()) + b"--x--\r\n")
        assert (made.status_code, made.json["documents"][0]["name"]) == (201, stored)
    assert listed(client) == expected
    assert {*tmp_path.parent.rglob("*.txt")} == before


def test_a_file_without_a_name_fails(client: Any) -> None:
    for name in ("", "..", "/", "\0"):
        made = raw(client, part(name) + b"--x--\r\n")
        assert made.status_code == 422
        assert [(d["status"], "name" in d["reason"]) for d in made.json["documents"]] == [("failed", True)]


@pytest.mark.process
def test_a_pdf_may_have_a_reserved_name(client: Any) -> None:
    made = upload(client, (make_pdf([[KEYS.decode()]]), "con.pdf")).json["documents"][0]
    assert (made["name"], made["status"], made["pages"]) == ("con.pdf", "ready", 1)


def test_files_of_one_request_with_the_same_name_are_all_stored(client: Any) -> None:
    boats = b"Boats are lifted in October."
    made = upload(client, (KEYS, "a.txt"), (boats, "a.txt"), (KEYS, "a.txt")).json["documents"]
    assert [(d["name"], d["status"], d["unchanged"], d["replaced"]) for d in made] == [
        ("a.txt", "ready", False, ""),
        ("a (2).txt", "ready", False, ""),
        ("a.txt", "ready", True, ""),
    ]
    assert listed(client) == ["a.txt", "a (2).txt"]


@pytest.mark.parametrize("on_conflict", ["replace", "keep-both", "fail"])
def test_a_second_file_of_a_name_replaces_no_stored_document(client: Any, on_conflict: str) -> None:
    other = upload(client, (b"Boats are lifted in October.", "z (2).txt"), (b"\0" * 9000, "z (3).txt"))
    assert other.status_code == 201
    for again in (False, True):
        files = ((KEYS, "z.txt"), (KEYS + b" And the doors.", "z.txt"), (b"\0" * 9001, "z.txt"))
        made = upload(client, *files, on_conflict=on_conflict).json["documents"]
        assert [(d["name"], d["status"], d["unchanged"]) for d in made] == [
            ("z.txt", "ready", again),
            ("z (4).txt", "ready", again),
            ("z (5).txt", "failed", False),
        ]
        assert listed(client)[:2] == ["z (2).txt", "z (3).txt"] and len(listed(client)) == 5
    texts = [client.get(f"/api/rag/documents/{d['id']}/content").data for d in made[:2]]
    assert texts == [KEYS, KEYS + b" And the doors."]


def test_a_replacement_is_reported_and_can_be_refused_or_avoided(client: Any) -> None:
    old = upload(client, (KEYS, "a.txt")).json["documents"][0]
    boats = (b"Boats are lifted in October.", "a.txt")
    refused = upload(client, boats, on_conflict="fail")
    assert (refused.status_code, refused.content_type) == (409, "application/problem+json")
    some = upload(client, boats, (b"Another text.", "b.txt"), on_conflict="fail")
    assert (some.status_code, [d["status"] for d in some.json["documents"]]) == (201, ["failed", "ready"])
    both = upload(client, boats, on_conflict="keep-both").json["documents"][0]
    assert (both["name"], both["replaced"]) == ("a (2).txt", "")
    new = upload(client, (b"Boats are lifted in May.", "a.txt")).json["documents"][0]
    assert (new["name"], new["replaced"]) == ("a.txt", old["id"])
    assert upload(client, boats, on_conflict="perhaps").status_code == 400


@pytest.mark.parametrize("headers", [{}, {"Prefer": "respond-async"}], ids=["at once", "job"])
def test_metadata_of_unchanged_bytes_are_replaced_if_they_are_sent(client: Any, headers: dict[str, str]) -> None:
    def told(**form: str) -> Any:
        data = {"file": (io.BytesIO(KEYS), "a.txt"), **form}
        answer = client.post("/api/rag/upload", data=data, headers=headers)
        while "documents" in answer.json and answer.json.get("state") in ("queued", "running"):
            answer = client.get(f"/api/jobs/{answer.json['id']}")
        return answer.json["documents"][0]

    old = told(metadata='{"site": "north"}')
    for form in ({}, {"metadata": ""}, {"metadata": '{"site": "north"}'}):
        same = told(**form)
        assert (same["id"], same["unchanged"], same["metadata"]) == (old["id"], True, {"site": "north"})
    new = told(metadata='{"site": "south"}')
    assert (new["replaced"], new["metadata"], new["reason"]) == (
        old["id"],
        {"site": "south"},
        "the metadata were replaced",
    )
    assert told(metadata="{}")["metadata"] == {} and listed(client) == ["a.txt"]


@pytest.mark.process
def test_concurrent_uploads_of_the_same_bytes_are_one_document(app: Any) -> None:
    go = threading.Barrier(4)
    data = make_pdf([[KEYS.decode()]] * 20)

    def send(_: int) -> Any:
        go.wait(30)
        return upload(app.test_client(), (data, "rules.pdf"))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send, range(4)))
    assert [answer.status_code for answer in answers] == [201] * 4
    told = [answer.json["documents"][0] for answer in answers]
    assert len({document["id"] for document in told}) == 1
    assert sorted(document["unchanged"] for document in told) == [False, True, True, True]
    client = app.test_client()
    assert listed(client) == ["rules.pdf"]
    assert client.post("/api/rag/query", json={"question": "Who keeps the keys?"}).json["citations"]


def test_invalid_bodies_are_refused_and_store_nothing(client: Any) -> None:
    cases: list[tuple[bytes, str | None, int, str]] = [
        (b"{}", "application/json", 415, "multipart"),
        (b"file=x", "application/x-www-form-urlencoded", 415, "multipart"),
        (KEYS, "text/plain", 415, "multipart"),
        (KEYS, None, 415, "multipart"),
        (b"", None, 400, "file: is missing"),
        (part("a.txt") + b"--x--\r\n", "multipart/form-data", 400, "boundary"),
        (part("a.txt") + b"--x--\r\n", 'multipart/form-data; boundary=""', 400, "boundary"),
        (part("a.txt") + b"--x--\r\n", "multipart/form-data; boundary=other", 400, "body"),
        (part("a.txt") + b"--x--\r\n", "multipart/form-data; boundary=ä", 400, "boundary"),
        (part("a.txt"), FORM, 400, "body"),
        (part("a.txt")[:-20], FORM, 400, "body"),
        (b"--x\r\nno header", FORM, 400, "body"),
        (b"--x\r\nContent-Type: text/plain\r\n\r\nx\r\n--x--\r\n", FORM, 400, "body"),
        (b"--x--\r\n", FORM, 400, "file: is missing"),
        (b"", FORM, 400, ""),
        (b"\xff\xfe" * 500, FORM, 400, "body"),
        (part("a.txt", field="upload") + b"--x--\r\n", FORM, 400, "upload: is not a known name"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--x--\r\n', FORM, 400, "filename"),
    ]
    for body, content_type, status, message in cases:
        answer = raw(client, body, content_type)
        assert (answer.status_code, answer.content_type) == (status, "application/problem+json"), answer.text
        assert message in answer.json["detail"]
    assert listed(client) == []


def test_invalid_fields_are_named_and_nothing_is_stored(client: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"metadata": "[1]"}, "metadata"),
        ({"metadata": "{"}, "metadata"),
        ({"metadata": "{" * 5000}, "metadata"),
        ({"metadata": '{"a": NaN}'}, "metadata"),
        ({"metadata": '{"a": "\\ud800"}'}, "metadata"),
        ({"metadata": '{"a": ' + "[" * 200 + "1" + "]" * 200 + "}"}, "metadata"),
        ({"metadata": json.dumps({"a": "x" * 120_000})}, "metadata"),
        ({"metadata": ["{}", "{}"]}, "metadata"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "   "}, "namespace"),
        ({"namespace": "n" * 201}, "namespace"),
        ({"password": "p" * 1001}, "password"),
        ({"colour": "red"}, "colour"),
    ]
    for form, field in cases:
        answer = upload(client, (KEYS, "keys.txt"), **form)
        assert (answer.status_code, answer.json["field"]) == (400, field)
    assert listed(client) == []


def test_too_many_files_are_413_and_name_the_limit(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_upload_files=3)
    client = app.test_client()
    for count in (4, 40):
        answer = upload(client, *[(KEYS, f"{n}.txt") for n in range(count)])
        assert (answer.status_code, answer.json["limit"]) == (413, "max_upload_files")
    assert listed(client) == []
    assert upload(client, *[(KEYS + str(n).encode(), f"{n}.txt") for n in range(3)]).status_code == 201
    close_app(app)


def test_a_body_over_the_limit_is_413_with_or_without_its_length(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_file_bytes=1000)
    client = app.test_client()
    body = part("big.txt", b"x" * 2_000_000) + b"--x--\r\n"
    for more in (
        {},
        {"headers": {"Transfer-Encoding": "chunked"}, "environ_overrides": {"wsgi.input_terminated": True}},
    ):
        given = {"data": body} if not more else {"input_stream": io.BytesIO(body)}
        answer = client.post("/api/rag/upload", content_type=FORM, **given, **more)
        assert (answer.status_code, answer.json["limit"]) == (413, "max_file_bytes")
    close_app(app)


CHUNKED = {"headers": {"Transfer-Encoding": "chunked"}, "environ_overrides": {"wsgi.input_terminated": True}}


@pytest.mark.parametrize("more", [{}, CHUNKED], ids=["length", "chunked"])
def test_too_large_fields_have_their_own_limit(client: Any, more: dict[str, Any]) -> None:
    def send(*fields: bytes) -> Any:
        head = b'--x\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n'
        body = part("a.txt") + b"".join(head + field + b"\r\n" for field in fields) + b"--x--\r\n"
        given = {"input_stream": io.BytesIO(body)} if more else {"data": body}
        return client.post("/api/rag/upload", content_type=FORM, **given, **more)

    for answer in (send(b"x" * 600_000), send(*[b"{}"] * 200)):
        assert (answer.status_code, answer.json["limit"]) == (413, "max_field_bytes")
        assert "500000" in answer.json["detail"]
    assert listed(client) == []


def test_a_body_read_by_the_host_application_has_the_same_limits(tmp_path: Path) -> None:
    ours = make_app(tmp_path, max_upload_files=3)
    host = flask.Flask("host")
    host.before_request(lambda: (flask.request.form, None)[1])
    init_app(host, ours.extensions["agentformer"])
    answer = upload(host.test_client(), *[(KEYS, f"{n}.txt") for n in range(4)])
    assert (answer.status_code, answer.json["limit"]) == (413, "max_upload_files")
    close_app(host)
    close_app(ours)


@pytest.mark.parametrize("in_host", [False, True])
def test_too_many_concurrent_uploads_are_429_with_retry_after(tmp_path: Path, in_host: bool) -> None:
    """In a host application, a further upload does not wait, because the threads are not ours."""
    app = make_app(tmp_path, max_uploads=1, queue_seconds=10_000 if in_host else 0.01)
    host = flask.Flask("host") if in_host else app
    if in_host:
        init_app(host, app.extensions["agentformer"])
    client, began, go = host.test_client(), threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            began.set()
            assert go.wait(30)
            return super().read(size)

        def readinto(self, buffer: Any) -> int:
            began.set()
            assert go.wait(30)
            return super().readinto(buffer)

    body = part("slow.txt") + b"--x--\r\n"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(
            host.test_client().post,
            "/api/rag/upload",
            input_stream=Slow(body),
            content_type=FORM,
            content_length=len(body),
        )
        assert began.wait(30)
        refused = upload(client, (KEYS, "keys.txt"))
        assert (refused.status_code, refused.json["limit"]) == (429, "max_uploads")
        assert int(refused.headers["Retry-After"]) > 0
        go.set()
        assert slow.result().status_code == 201
    assert upload(client, (KEYS + b"!", "keys.txt")).status_code == 201
    close_app(host)
    close_app(app)


def test_an_interrupted_upload_stores_nothing_and_frees_its_slot(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_uploads=1)
    client = app.test_client()
    body = part("keys.txt")
    for _ in range(3):
        answer = client.post(
            "/api/rag/upload", input_stream=io.BytesIO(body), content_type=FORM, content_length=len(body) + 1000
        )
        assert answer.status_code == 400
    assert listed(client) == []
    assert upload(client, (KEYS, "keys.txt")).status_code == 201
    close_app(app)


def test_a_host_application_without_a_limit_uses_ours(tmp_path: Path) -> None:
    ours = make_app(tmp_path, max_file_bytes=1000)
    host = flask.Flask("host")
    init_app(host, ours.extensions["agentformer"], url_prefix="/memory")
    body = part("big.txt", b"x" * 2_000_000) + b"--x--\r\n"
    answer = host.test_client().post("/memory/api/rag/upload", data=body, content_type=FORM)
    assert (answer.status_code, answer.json["limit"]) == (413, "max_file_bytes")
    close_app(ours)


# Keys that may only write

WRITER = grant("write")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Mounted]:
    """A memory with a document that a write-only key must not learn of."""
    with mounted(tmp_path) as host:
        host.af.rag.upload(KEYS, name="Mergers 2027.md", metadata={"case": "4711"})
        yield host


def sent(host: Mounted, data: bytes, name: str, asking: Any = WRITER) -> Any:
    form = {"file": (io.BytesIO(data), name), "metadata": '{"mine": 1}'}
    answer = host.ask("POST", "/api/rag/upload", asking, data=form)
    models.Uploaded.model_validate(answer.json, strict=True)
    return answer


@pytest.mark.process
def test_a_write_only_key_learns_nothing_of_existing_documents(shared: Mounted) -> None:
    name = "Mergers 2027.md"
    zeros = b"\0" * 9000
    for stored, new in (((KEYS, name), (KEYS, "guess.md")), ((zeros, name), (zeros, "guess2.md"))):
        answers = [sent(shared, data, each) for data, each in (stored, new)]
        assert answers[0].status_code == answers[1].status_code
        told, of_new = (answer.json["documents"][0] for answer in answers)
        assert (told["name"], told["id"], told["metadata"], told["unchanged"]) == (name, "", {"mine": 1}, False)
        assert {key: told[key] for key in told.keys() - {"name"}} == {
            key: of_new[key] for key in told.keys() - {"name"}
        }
    for asking in (grant("read", "write"), grant("admin")):
        seen = sent(shared, KEYS, name, asking).json["documents"][0]
        assert (seen["name"], seen["metadata"], seen["unchanged"]) == (name, {"mine": 1}, True)
        broken = sent(shared, zeros, name, asking).json["documents"][0]
        assert "the former version" in broken["reason"]
    replacing = sent(shared, KEYS + b" And the doors.", name).json["documents"][0]
    assert (replacing["id"], replacing["replaced"], replacing["status"]) == ("", "", "ready")


@pytest.mark.process
def test_the_upload_tool_shows_a_write_only_key_no_more(shared: Mounted) -> None:
    def told(name: str, asking: Any = WRITER) -> Any:
        given = {"name": name, "text": KEYS.decode(), "metadata": {"mine": 1}}
        return shared.post("/api/tools/rag_upload", given, asking).json["result"]["document"]

    there, new = told("Mergers 2027.md"), told("guess.md")
    assert (there["id"], there["metadata"], there["unchanged"]) == ("", {"mine": 1}, False)
    assert {key for key in there if there[key] != new[key]} == {"name"}
    assert told("Mergers 2027.md", grant("read", "write"))["metadata"] == {"mine": 1}


@pytest.mark.process
def test_a_write_only_key_cannot_ask_whether_a_document_exists(shared: Mounted) -> None:
    form = {"file": (io.BytesIO(KEYS), "guess.txt"), "on_conflict": "fail"}
    assert shared.ask("POST", "/api/rag/upload", WRITER, data=form).status_code == 403
    tool = {"name": "guess.txt", "text": "Some text.", "on_conflict": "fail"}
    assert shared.post("/api/tools/rag_upload", tool, WRITER).status_code == 403
    assert shared.post("/api/tools/rag_upload", tool, grant("read", "write")).status_code == 200
