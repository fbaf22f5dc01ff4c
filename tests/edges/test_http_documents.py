"""Documents over HTTP: lists, originals, chunks, pages, deletion, and access."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from werkzeug.http import parse_options_header

from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.api.endpoints.documents import attachment
from agentformer.api.response import reply
from agentformer.settings import load_settings
from tests.readers.conftest import make_pdf

KEYS = "The caretaker keeps the keys in the blue cupboard."
NOBODY = "00000000-0000-7000-8000-000000000000"
EACH = ["", "/content", "/chunks", "/pages"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    with app.test_client() as client:
        yield client
    close_app(app)


def bring(client: Any, data: bytes, name: str, **options: Any) -> str:
    """The id of a new document."""
    rag = client.application.extensions["agentformer"].rag
    found: str = rag.upload(data, name=name, **options).id
    return found


def key(client: Any, *rights: Any, namespaces: tuple[str, ...] = ()) -> dict[str, str]:
    """Headers of a new key."""
    memory = client.application.extensions["agentformer"]
    _, secret = memory.keys.make("somebody", rights, namespaces)
    return {"Authorization": f"Bearer {secret}"}


def test_pages_of_a_list_have_each_document_once(client: Any) -> None:
    ids = [bring(client, f"Boat {n} is blue.".encode(), f"boat{n}.txt") for n in range(5)]
    bring(client, b"Elsewhere.", "other.txt", namespace="other")
    seen, after, pages = [], "", 0
    while after is not None:
        page = client.get("/api/rag/documents", query_string={"limit": 2, "after": after}).json
        seen += [document["id"] for document in page["documents"]]
        after, pages = page["next"], pages + 1
    assert (seen, pages) == (ids, 3)


def test_no_answer_has_the_path_of_a_file_on_the_server(client: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text(KEYS)
    document = client.application.extensions["agentformer"].rag.upload(tmp_path / "keys.txt")
    assert document.origin == (tmp_path / "keys.txt").resolve().as_posix()
    query = client.post("/api/rag/query", json={"question": "Where are the keys?"})
    listed = client.get("/api/memory", query_string={"kind": "document"})
    assert [entry["id"] for entry in listed.json["entries"]] == [document.id]
    single = [client.get(f"{place}/{document.id}") for place in ("/api/rag/documents", "/api/memory")]
    for answer in (query, listed, *single, client.get("/api/rag/documents")):
        assert answer.status_code == 200 and tmp_path.name not in answer.text


def test_the_last_page_has_no_next(client: Any) -> None:
    assert client.get("/api/rag/documents").json == {"documents": [], "next": None}
    bring(client, b"One.", "one.txt")
    assert client.get("/api/rag/documents").json["next"] is None


def test_a_list_has_one_namespace(client: Any) -> None:
    there = bring(client, b"Elsewhere.", "other.txt", namespace="other")
    page = client.get("/api/rag/documents?namespace=other").json
    assert [document["id"] for document in page["documents"]] == [there]
    assert client.get("/api/rag/documents?namespace=nowhere").json["documents"] == []


def test_a_document_has_the_same_fields_as_its_upload(client: Any) -> None:
    made = client.post("/api/rag/upload", data={"file": (io.BytesIO(KEYS.encode()), "keys.txt")}).json["documents"][0]
    assert client.get(f"/api/rag/documents/{made['id']}").json == made


def test_json_is_readable_utf8(client: Any) -> None:
    there = f"/api/rag/documents/{bring(client, 'Hyvää yötä.'.encode(), 'yö 🦦.txt')}"
    assert '"name":"yö 🦦.txt"' in client.get(there).data.decode()
    assert '"text":"Hyvää yötä."' in client.get(f"{there}/pages").data.decode()


def test_half_a_surrogate_pair_is_escaped(client: Any) -> None:
    with client.application.app_context():
        assert reply({"said": "\ud800 ä"}).data == b'{"said": "\\ud800 \\u00e4"}'


def test_json_has_every_text_and_no_number_that_json_does_not_have(client: Any) -> None:
    value = {"b": "NaN, Infinity \u2028 ä", "a": [1e-7, 2**70, True, None], "": {"z": ("x", 1.0)}}
    with client.application.app_context():
        for text in ("NaN", "-Infinity", "plain"):
            told = reply({**value, "text": text}).get_json()
            assert told == {**value, "": {"z": ["x", 1.0]}, "text": text}
            assert [*told] == ["b", "a", "", "text"]
        for number in (float("nan"), float("inf"), float("-inf")):
            with pytest.raises(ValueError, match="Out of range"):
                reply({"score": [number]})


@pytest.mark.process
def test_the_original_is_an_attachment_with_the_same_bytes(client: Any) -> None:
    pdf = make_pdf([["Nothing."], [KEYS]])
    there = f"/api/rag/documents/{bring(client, pdf, 'rules.pdf')}/content"
    answer = client.get(there)
    assert answer.data == pdf
    assert answer.headers["Content-Type"] == "application/pdf"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="rules.pdf"')
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    head = client.head(there)
    assert (head.status_code, head.data, head.content_length) == (200, b"", len(pdf))


@pytest.mark.process
def test_html_is_never_sent_as_html(client: Any) -> None:
    page = b"<!doctype html><html><body><script>alert(1)</script><p>The boat is blue.</p></body></html>"
    answer = client.get(f"/api/rag/documents/{bring(client, page, 'page.html')}/content")
    assert answer.data == page
    assert answer.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.process
def test_an_original_is_stored_under_its_hash_and_is_not_executable(client: Any, tmp_path: Path) -> None:
    program = b"#!/bin/sh\necho ships\n"
    bring(client, program, "../../bin/run\x1b[2J.sh")
    (kept,) = (tmp_path / "u").rglob("*.bin")
    digest = hashlib.sha256(program).hexdigest()
    (_, *place) = kept.relative_to(tmp_path / "u").parts
    assert place == [digest[:2], f"{digest}.bin"]
    assert kept.stat().st_mode & 0o7111 == 0
    assert client.get("/api/rag/documents").json["documents"][0]["name"].startswith("bin/run[2J ~")


@pytest.mark.process
def test_no_response_can_be_sniffed_as_another_type(client: Any) -> None:
    page = b"<!doctype html><html><body><script>alert(1)</script><p>The boat is blue.</p></body></html>"
    there = f"/api/rag/documents/{bring(client, page, 'page.html')}"
    for path in [*(there + part for part in EACH), "/", "/nowhere", "/api/rag/documents"]:
        answer = client.get(path)
        assert answer.headers["X-Content-Type-Options"] == "nosniff", path
        assert b"<script>alert" not in answer.data or "attachment" in answer.headers["Content-Disposition"], path
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"], path


def test_the_name_of_an_attachment_is_complete_in_utf8_and_safe_in_ascii() -> None:
    names = [
        ("report.pdf", "report.pdf"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("half\ud800.txt", "half.txt"),
        ("folder/inner/report.pdf", "report.pdf"),
        ("Käyttöohje 2026.pdf", "Kayttoohje 2026.pdf"),
        ("報告書.pdf", ".pdf"),
        ('a"b;c\\d%41.txt', "a_b_c_d_41.txt"),
        ("line\r\nSet-Cookie: x=1.txt", "lineSet-Cookie_ x_1.txt"),
        ("🦦.txt", ".txt"),
        ("x" * 300, "x" * 300),
    ]
    for name, plain in names:
        header = attachment(name)
        assert header.isascii() and header.isprintable()
        kind, options = parse_options_header(header)
        printed = "".join(filter(str.isprintable, name.rpartition("/")[2]))
        assert (kind, options["filename"]) == ("attachment", printed)
        assert f'filename="{plain}"' in header


@pytest.mark.process
def test_chunks_are_in_order_and_part_of_their_pages(client: Any) -> None:
    lines = [f"Boat {n} lies at pier {n} and is painted blue every spring by its owner." for n in range(60)]
    there = f"/api/rag/documents/{bring(client, make_pdf([lines[:30], lines[30:]]), 'boats.pdf')}"
    chunks, after = [], ""
    while after is not None:
        page = client.get(f"{there}/chunks", query_string={"limit": 1, "after": after}).json
        chunks += page["chunks"]
        after = page["next"]
    assert len(chunks) == client.get(there).json["chunks"] >= 2
    assert [(chunk["page"], chunk["start"]) for chunk in chunks] == sorted((c["page"], c["start"]) for c in chunks)
    texts = {page["number"]: page["text"] for page in client.get(f"{there}/pages").json["pages"]}
    assert set(texts) == {1, 2}
    assert all(chunk["content"] == texts[chunk["page"]][chunk["start"] : chunk["end"]] for chunk in chunks)
    assert {chunk["document"] for chunk in chunks} == {"boats.pdf"}


@pytest.mark.process
def test_pages_of_a_document_are_listed_in_order(client: Any) -> None:
    there = f"/api/rag/documents/{bring(client, make_pdf([['One.'], ['Two.'], ['Three.']]), 'three.pdf')}/pages"
    first = client.get(f"{there}?limit=2").json
    rest = client.get(f"{there}?limit=2&after={first['next']}").json
    assert [page["text"] for page in first["pages"] + rest["pages"]] == ["One.", "Two.", "Three."]
    assert rest["next"] is None
    assert {(page["status"], page["reason"]) for page in first["pages"]} == {("text", "")}


def test_a_deleted_document_leaves_nothing(client: Any, tmp_path: Path) -> None:
    there = f"/api/rag/documents/{bring(client, KEYS.encode(), 'keys.txt')}"
    gone = client.delete(there)
    assert (gone.status_code, gone.data) == (204, b"")
    assert [client.get(there + part).status_code for part in EACH] == [404, 404, 404, 404]
    assert client.delete(there).status_code == 404
    assert client.post("/api/rag/query", json={"question": "Who keeps the keys?"}).json["mode"] == "none"
    assert not [*(tmp_path / "u").rglob("*.bin")]


def test_an_unknown_document_is_not_found(client: Any) -> None:
    unknown = (NOBODY, "x", "%00", "%F0%9F%A6%A6", "..%5C..", "n" * 5000, "%ff")
    for path in (document_id + part for document_id in unknown for part in EACH):
        answer = client.get(f"/api/rag/documents/{path}")
        assert (answer.status_code, answer.content_type) == (404, "application/problem+json")
        assert answer.json["type"] == "urn:agentformer:problem:not-found"
        assert len(answer.data) < 1500


def test_an_entry_that_is_not_a_document_is_not_found(client: Any) -> None:
    there = f"/api/rag/documents/{bring(client, KEYS.encode(), 'keys.txt')}"
    chunk = client.get(f"{there}/chunks").json["chunks"][0]["id"]
    fact = client.application.extensions["agentformer"].memory.store("Aino prefers tea.").id
    for entry_id in (chunk, fact):
        assert client.get(f"/api/rag/documents/{entry_id}").status_code == 404
        assert client.delete(f"/api/rag/documents/{entry_id}").status_code == 404
    assert client.get(there).status_code == 200


def test_a_lost_original_is_404_without_a_path(client: Any, tmp_path: Path) -> None:
    document = bring(client, KEYS.encode(), "keys.txt")
    for file in (tmp_path / "u").rglob("*.bin"):
        file.unlink()
    answer = client.get(f"/api/rag/documents/{document}/content")
    assert (answer.status_code, answer.json["detail"]) == (
        404,
        "the original file of this document is not stored; upload the document again",
    )


@pytest.mark.process
def test_an_unreadable_file_has_no_pages_and_no_original(client: Any) -> None:
    broken = f"/api/rag/documents/{bring(client, b'%PDF-1.7 broken', 'broken.pdf')}"
    told = client.get(broken).json
    assert (told["status"], told["pages"], told["chunks"]) == ("failed", 0, 0)
    assert client.get(f"{broken}/pages").json == {"pages": [], "next": None}
    assert client.get(f"{broken}/content").status_code == 404


def test_a_document_of_another_namespace_looks_like_one_that_does_not_exist(client: Any) -> None:
    theirs = bring(client, KEYS.encode(), "keys.txt", namespace="theirs")
    bring(client, b"Ours.", "ours.txt", namespace="ours")
    headers = {**key(client, "read", "write", namespaces=("ours",)), "X-Request-ID": "same"}
    for part in EACH:
        hidden = client.get(f"/api/rag/documents/{theirs}{part}", headers=headers)
        absent = client.get(f"/api/rag/documents/{NOBODY}{part}", headers=headers)
        assert hidden.status_code == 404
        assert hidden.data.replace(theirs.encode(), b"") == absent.data.replace(NOBODY.encode(), b"")
        assert {**hidden.headers} == {**absent.headers}
    hidden, absent = (client.delete(f"/api/rag/documents/{each}", headers=headers) for each in (theirs, NOBODY))
    assert hidden.data.replace(theirs.encode(), b"") == absent.data.replace(NOBODY.encode(), b"")
    everything = key(client, "read")
    assert client.get(f"/api/rag/documents/{theirs}", headers=everything).status_code == 200


def test_another_namespace_is_403_with_or_without_documents(client: Any) -> None:
    theirs = bring(client, KEYS.encode(), "keys.txt", namespace="theirs")
    headers = key(client, "read", namespaces=("ours",))
    for there in ("", f"/{theirs}", f"/{theirs}/chunks"):
        for namespace in ("theirs", "empty"):
            answer = client.get(f"/api/rag/documents{there}?namespace={namespace}", headers=headers)
            assert (answer.status_code, answer.json["type"]) == (403, "urn:agentformer:problem:forbidden")
    asked = client.post("/api/rag/query", json={"question": "Who?", "namespace": "theirs"}, headers=headers)
    assert asked.status_code == 403


def test_a_key_with_one_namespace_uses_it_by_default(client: Any) -> None:
    ours = bring(client, KEYS.encode(), "keys.txt", namespace="ours")
    headers = key(client, "read", namespaces=("ours",))
    assert [d["id"] for d in client.get("/api/rag/documents", headers=headers).json["documents"]] == [ours]
    answer = client.post("/api/rag/query", json={"question": "Who keeps the keys?"}, headers=headers).json
    assert answer["citations"][0]["document_id"] == ours


def test_a_document_is_found_in_its_namespace_only(client: Any) -> None:
    there = f"/api/rag/documents/{bring(client, KEYS.encode(), 'keys.txt', namespace='ours')}"
    assert client.get(there).status_code == 200
    assert client.get(f"{there}?namespace=ours").status_code == 200
    assert client.get(f"{there}?namespace=other").status_code == 404
    assert client.delete(f"{there}?namespace=other").status_code == 404


@pytest.mark.parametrize(
    ("rights", "reads", "deletes"), [(("read",), 200, 403), (("write",), 403, 403), (("admin",), 200, 204)]
)
def test_each_right_opens_what_it_says(client: Any, rights: tuple[str, ...], reads: int, deletes: int) -> None:
    there = f"/api/rag/documents/{bring(client, KEYS.encode(), 'keys.txt')}"
    headers = key(client, *rights)
    assert {client.get(there + part, headers=headers).status_code for part in EACH} == {reads}
    assert client.get("/api/rag/documents", headers=headers).status_code == reads
    assert client.post("/api/rag/query", json={"question": "Who?"}, headers=headers).status_code == reads
    assert client.delete(there, headers=headers).status_code == deletes


def test_without_a_key_nothing_is_said_once_there_are_keys(client: Any) -> None:
    there = f"/api/rag/documents/{bring(client, KEYS.encode(), 'keys.txt')}"
    key(client, "read")
    answers = [client.get(there), client.get(f"/api/rag/documents/{NOBODY}"), client.get("/api/rag/documents?limit=x")]
    assert {answer.status_code for answer in answers} == {401}
    assert all(answer.headers["WWW-Authenticate"].startswith("Bearer") for answer in answers)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/rag/documents", {"GET", "HEAD", "OPTIONS"}),
        ("PUT", f"/api/rag/documents/{NOBODY}", {"GET", "HEAD", "DELETE", "OPTIONS"}),
        ("DELETE", f"/api/rag/documents/{NOBODY}/content", {"GET", "HEAD", "OPTIONS"}),
        ("GET", "/api/rag/query", {"POST", "OPTIONS"}),
        ("DELETE", "/openapi.json", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(client: Any, method: str, path: str, allowed: set[str]) -> None:
    answer = client.open(path, method=method)
    assert (answer.status_code, answer.content_type) == (405, "application/problem+json")
    assert set(answer.headers["Allow"].split(", ")) == allowed
    asked = client.options(path)
    assert (asked.status_code, set(asked.headers["Allow"].split(", "))) == (204, allowed)


def test_a_document_that_is_deleted_meanwhile_is_not_found(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    document = bring(client, KEYS.encode(), "keys.txt")
    rag = client.application.extensions["agentformer"].rag
    remove = rag.remove

    def slower(document_id: str, **options: Any) -> None:
        remove(document_id, **options)  # by somebody else
        remove(document_id, **options)

    monkeypatch.setattr(rag, "remove", slower)
    answer = client.delete(f"/api/rag/documents/{document}")
    assert (answer.status_code, answer.json["detail"]) == (404, f"there is no document {document}")
