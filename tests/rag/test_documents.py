"""Documents through the public interface: upload, replace, list, remove, and bad files."""

from __future__ import annotations

import dataclasses
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.errors import InvalidInput, NotFound, StoreFull
from agentformer.readers.ocr import ocr_unavailable
from agentformer.types import Scope
from tests.permissions import ordinary_user
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process

KEYS = "The caretaker of Lintula keeps the keys in the blue cupboard. She comes at eight every morning."
BOATS = "Boats are lifted out of the water in the second week of October. Owners wash the hull themselves."


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with agentformer.connect(
        index_dir=tmp_path / "indexes", upload_dir=tmp_path / "uploads", embedder="hashing"
    ) as opened:
        yield opened


def originals(af: agentformer.AgentFormer) -> list[str]:
    return sorted(path.stem for path in af.settings.upload_dir.rglob("*.bin"))


def test_an_answer_cites_the_page_and_the_exact_span(af: agentformer.AgentFormer) -> None:
    document = af.rag.upload(make_pdf([[BOATS], [KEYS]]), name="rules.pdf")
    answer = af.rag.query("Where are the keys of Lintula?")
    citation = answer.citations[0]
    page = af.rag.pages(document.id)[citation.page - 1]
    assert (citation.document, citation.page, answer.mode) == ("rules.pdf", 2, "extractive")
    assert page.text[citation.start : citation.end] == citation.quote
    assert "blue cupboard" in citation.quote
    assert answer.hits[0].entry.source.page == 2


def test_every_chunk_reproduces_its_text_from_the_stored_page(af: agentformer.AgentFormer) -> None:
    document = af.rag.upload(make_pdf([[f"{KEYS} {n}", "", BOATS] for n in range(3)]), name="rules.pdf")
    pages = {page.number: page.text for page in af.rag.pages(document.id)}
    chunks = af.backend.list(Scope(kinds=("chunk",)))
    assert len(chunks) == document.chunks >= 3
    for chunk in chunks:
        assert chunk.source is not None and chunk.source.page is not None
        assert pages[chunk.source.page][chunk.source.start : chunk.source.end] == chunk.content


def test_the_same_bytes_twice_are_one_document(af: agentformer.AgentFormer) -> None:
    first = af.rag.upload(KEYS.encode(), name="keys.txt")
    again = af.rag.upload(KEYS.encode(), name="keys.txt")
    assert (again.id, again.unchanged, first.unchanged) == (first.id, True, False)
    assert [document.name for document in af.rag.documents()] == ["keys.txt"]
    assert len(originals(af)) == 1


def test_the_same_name_with_new_bytes_replaces_the_old_version(af: agentformer.AgentFormer) -> None:
    old = af.rag.upload(KEYS.encode(), name="rules.txt")
    new = af.rag.upload(BOATS.encode(), name="rules.txt")
    assert [document.id for document in af.rag.documents()] == [new.id]
    assert not [hit for hit in af.rag.query("keys cupboard caretaker").hits if "cupboard" in hit.entry.content]
    assert af.backend.get([old.id]) == []


def test_the_original_of_a_replaced_version_goes_with_it(af: agentformer.AgentFormer) -> None:
    af.rag.upload(KEYS.encode(), name="rules.txt")
    new = af.rag.upload(BOATS.encode(), name="rules.txt")
    assert originals(af) == [new.sha256]
    af.rag.remove(new.id)
    assert originals(af) == []


def test_an_upload_that_fails_to_be_stored_leaves_no_original(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(af.backend, "store", full)
    with pytest.raises(StoreFull):
        af.rag.upload(KEYS.encode(), name="keys.txt")
    assert originals(af) == []


def test_names_in_different_folders_are_different_documents(af: agentformer.AgentFormer) -> None:
    af.rag.upload(KEYS.encode(), name="2024/rules.txt")
    af.rag.upload(BOATS.encode(), name="2025/rules.txt")
    assert [document.name for document in af.rag.documents()] == ["2024/rules.txt", "2025/rules.txt"]


def test_a_bad_upload_beside_a_good_one_never_removes_it(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = af.backend.store

    def while_a_good_one_comes(entries: Any, **options: Any) -> Any:
        monkeypatch.setattr(af.backend, "store", store)
        af.rag.upload(KEYS.encode(), name="keys.txt")
        return store(entries, **options)

    monkeypatch.setattr(af.backend, "store", while_a_good_one_comes)
    bad = af.rag.upload(b"\x00\x01" * 500, name="keys.txt")
    assert bad.status == "failed"
    assert [(d.name, d.status) for d in af.rag.documents()] == [("keys.txt", "ready")]


def test_the_old_version_answers_until_the_new_one_is_complete(af: agentformer.AgentFormer) -> None:
    af.rag.upload(KEYS.encode(), name="rules.txt")
    seen: list[list[str]] = []

    def while_embedding(done: int, total: int) -> None:
        seen.append([hit.entry.content for hit in af.memory.search("keys cupboard", limit=5)])

    af.rag.upload(BOATS.encode(), name="rules.txt", progress=while_embedding)
    assert seen == [[KEYS]]
    assert [hit.entry.content for hit in af.memory.search("keys boats water", limit=5)] == [BOATS]


def test_a_new_version_that_cannot_be_read_leaves_the_old_one(af: agentformer.AgentFormer) -> None:
    good = af.rag.upload(make_pdf([[KEYS]]), name="rules.pdf")
    bad = af.rag.upload(b"%PDF-1.7\nnothing of the kind", name="rules.pdf")
    assert (bad.status, bad.id) == ("failed", "")
    assert "the former version" in bad.reason
    assert [document.id for document in af.rag.documents()] == [good.id]


def test_removing_a_document_removes_its_chunks_and_its_original(af: agentformer.AgentFormer) -> None:
    keys = af.rag.upload(KEYS.encode(), name="keys.txt")
    boats = af.rag.upload(BOATS.encode(), name="boats.txt")
    af.rag.remove(keys.id)
    assert [document.id for document in af.rag.documents()] == [boats.id]
    assert originals(af) == [boats.sha256]
    assert all("cupboard" not in hit.entry.content for hit in af.memory.search("blue cupboard keys"))
    with pytest.raises(NotFound, match="agentformer list"):
        af.rag.remove(keys.id)


def test_an_original_stays_while_another_namespace_has_it(af: agentformer.AgentFormer) -> None:
    here = af.rag.upload(KEYS.encode(), name="keys.txt", namespace="here")
    there = af.rag.upload(KEYS.encode(), name="keys.txt", namespace="there")
    af.rag.remove(here.id)
    assert originals(af) == [there.sha256]
    af.rag.remove(there.id)
    assert originals(af) == []


def test_nothing_crosses_a_namespace(af: agentformer.AgentFormer) -> None:
    document = af.rag.upload(KEYS.encode(), name="keys.txt", namespace="ours")
    answer = af.rag.query("Where are the keys?", namespace="theirs")
    assert (answer.mode, answer.hits, answer.citations) == ("none", (), ())
    with pytest.raises(NotFound):
        af.rag.remove(document.id, namespace="theirs")


def test_filters_choose_by_metadata_given_at_upload(af: agentformer.AgentFormer) -> None:
    af.rag.upload(f"{KEYS} North.".encode(), name="north.txt", metadata={"site": "north", "year": 2026})
    af.rag.upload(f"{KEYS} South.".encode(), name="south.txt", metadata={"site": "south", "year": 2026})
    answer = af.rag.query("Where are the keys?", metadata={"site": "south", "year": 2026})
    assert {hit.entry.source.name for hit in answer.hits} == {"south.txt"}
    assert af.rag.query("Where are the keys?", metadata={"year": "2026"}).mode == "none"
    former = af.rag.query("Where are the keys?", filters={"site": "south", "year": 2026})  # the former name
    assert former.citations == answer.citations
    for wrong, field in (({"filters": {}, "metadata": {}}, "filters"), ({"metadata": []}, "metadata")):
        with pytest.raises(InvalidInput) as refused:
            af.rag.query("Where are the keys?", **wrong)  # type: ignore[arg-type]
        assert refused.value.field == field


def test_a_question_without_any_hit_is_answered_in_its_own_language(af: agentformer.AgentFormer) -> None:
    answer = af.rag.query("Missä avaimet ovat ja kuka niitä säilyttää?")
    assert answer.text == "En löytänyt asiakirjoista tai muistista vastausta tähän."


@pytest.mark.parametrize(
    ("name", "data", "status", "reason"),
    [
        ("empty.pdf", b"", "failed", "empty"),
        ("blank.txt", b" \n\t \n", "failed", ""),
        ("text.pdf", b"../../docs/paper.pdf", "failed", "rename the file to .txt"),
        ("cut.pdf", make_pdf([[KEYS]])[:300], "failed", "damaged"),
        ("noise.bin", bytes(range(256)) * 40, "failed", ""),
        pytest.param(
            "picture.png",
            b"\x89PNG\r\n\x1a\n" + bytes(200),
            "failed",
            "damaged",
            marks=pytest.mark.skipif(bool(ocr_unavailable()), reason="tesseract or the extra `ocr` is not installed"),
        ),
        ("picture.gif", b"GIF89a" + bytes(200), "failed", "PDF"),
    ],
)
def test_a_bad_file_gets_a_status_and_a_reason(
    af: agentformer.AgentFormer, name: str, data: bytes, status: str, reason: str
) -> None:
    document = af.rag.upload(data, name=name)
    assert document.status == status
    assert reason in document.reason and document.reason
    assert af.backend.count(Scope(kinds=("chunk",))) == 0
    assert [listed.status for listed in af.rag.documents()] == [status]


def test_a_file_that_failed_is_read_again_when_it_comes_again(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    af.rag.upload(make_pdf([[KEYS]])[:300], name="keys.pdf")
    document = af.rag.upload(make_pdf([[KEYS]]), name="keys.pdf")
    assert [(d.id, d.status) for d in af.rag.documents()] == [(document.id, "ready")]


@pytest.mark.parametrize(
    "text",
    [
        "🦊🐻🦉 🚣",
        "القطار الأخير يغادر المحطة في الساعة العاشرة مساءً كل يوم.",
        "最終電車は毎晩十時に駅を出発します。切符は窓口で買えます。",
        "word " * 60_000,
        "x" * 300_000,
    ],
    ids=["emoji", "right-to-left", "japanese", "one long line", "one long word"],
)
def test_unusual_text_is_kept_and_found(af: agentformer.AgentFormer, text: str) -> None:
    document = af.rag.upload(text.encode(), name="text.txt")
    assert document.status == "ready"
    assert "".join(page.text for page in af.rag.pages(document.id)).split() == text.split()
    hits = af.memory.search(text[:60].strip())
    assert hits and hits[0].entry.source.document_id == document.id


def test_a_path_that_is_no_readable_file_is_refused(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    for wrong, said in ((tmp_path / "missing.pdf", "does not exist"), (tmp_path, "is a folder"), ("a\0b", "cannot")):
        with pytest.raises(InvalidInput, match=said):
            af.rag.upload(wrong)
    with pytest.raises(InvalidInput, match="name"):
        af.rag.upload(b"text without a name")
    with pytest.raises(InvalidInput, match="binary"):
        af.rag.upload(io.StringIO("text"))  # type: ignore[arg-type]


def test_an_upload_cannot_choose_a_path(af: agentformer.AgentFormer) -> None:
    document = af.rag.upload(KEYS.encode(), name="..\\../../etc/\x1b[31mpasswd\n.txt")
    assert re.fullmatch(r"etc/\[31mpasswd ~[0-9a-f]{8}\.txt", document.name)
    assert originals(af) == [document.sha256]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path / "i", embedder="hashing", max_file_bytes=100) as af:
        path = tmp_path / "big.txt"
        path.write_bytes(b"x" * 101)
        with pytest.raises(InvalidInput, match="more than 100 bytes"):
            af.rag.upload(path)


def test_an_upload_folder_that_cannot_be_written_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "uploads").write_text("a file where the folder should be")
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "uploads", embedder="hashing") as af:
        with pytest.raises(StoreFull, match="--upload-dir"):
            af.rag.upload(KEYS.encode(), name="keys.txt")
        assert af.rag.documents() == []
        assert af.memory.status()["entries"] == 0


def test_a_crowd_uploading_one_file_makes_one_document(af: agentformer.AgentFormer) -> None:
    told: list[str] = []  # the ids that each was told, none of which may be gone

    def upload(_: int) -> None:
        told.append(af.rag.upload(KEYS.encode(), name="copy.txt").id)

    crowd = [threading.Thread(target=upload, args=(n,)) for n in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(60)
    assert told == [af.rag.documents()[0].id] * 8
    assert len(af.rag.documents()) == 1
    assert af.backend.count(Scope(kinds=("chunk",))) == 1
    assert len(originals(af)) == 1


def test_an_encrypted_file_opens_with_its_password(af: agentformer.AgentFormer) -> None:
    from pypdf import PdfWriter

    writer = PdfWriter(clone_from=io.BytesIO(make_pdf([[KEYS]])))
    writer.encrypt("sesame", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    locked = af.rag.upload(out.getvalue(), name="keys.pdf")
    assert (locked.status, "password" in locked.reason) == ("encrypted", True)
    opened = af.rag.upload(out.getvalue(), name="keys.pdf", password="sesame")
    assert [(d.id, d.status) for d in af.rag.documents()] == [(opened.id, "ready")]


def test_without_an_embedder_everything_is_kept_and_found_by_words(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**folders, embedder=f"sbert:{tmp_path / 'no-such-model'}") as af:
        document = af.rag.upload(KEYS.encode(), name="keys.txt")
        answer = af.rag.query("Who keeps the keys?")
        assert (document.status, "reindex" in document.reason) == ("pending", True)
        assert [d.status for d in af.rag.documents()] == ["pending"]
        assert "blue cupboard" in answer.citations[0].quote
        assert "only a search by words finds them" in answer.warnings[0]
    with agentformer.connect(**folders, embedder="hashing") as af:
        assert "have no vectors yet" in af.rag.query("Who keeps the keys?").warnings[0]
        assert af.memory.reindex() == 0
        assert [d.status for d in af.rag.documents()] == ["ready"]
        assert af.memory.search("keys", mode="dense")[0].entry.content == KEYS


def test_memory_and_documents_share_one_store(af: agentformer.AgentFormer) -> None:
    kept = af.memory.store("Aino prefers tea.", kind="fact", metadata={"about": "Aino"})
    af.rag.upload(KEYS.encode(), name="keys.txt")
    assert af.memory.search("What does Aino prefer?", limit=1)[0].entry == kept
    assert af.rag.query("What does Aino prefer?").citations[0].entry_id == kept.id
    hits = af.rag.query("What does Aino prefer?", sources=["documents"]).hits
    assert all(hit.entry.kind == "chunk" for hit in hits)
    af.memory.remove(kept.id)
    with pytest.raises(NotFound):
        af.memory.get(kept.id)


def test_containers_of_documents_are_not_memories_kinds(af: agentformer.AgentFormer) -> None:
    with pytest.raises(InvalidInput, match="'document' is reserved for messages, summaries and documents"):
        af.memory.store("x", kind="document")
    document = af.rag.upload(KEYS.encode(), name="keys.txt")
    with pytest.raises(InvalidInput, match=r"rag\.remove"):
        af.memory.remove(document.id)


@pytest.mark.parametrize("wrong", [0, -1, 2**31, "3", 3.0, True, None])
def test_a_limit_is_a_whole_number_in_bounds(af: agentformer.AgentFormer, wrong: Any) -> None:
    af.memory.store("The keys hang in the cupboard.")
    with pytest.raises(InvalidInput, match="limit"):
        af.memory.search("keys", limit=wrong)
    if wrong is not None:
        with pytest.raises(InvalidInput, match="top_k"):
            af.rag.query("keys", top_k=wrong)


def test_a_torn_word_is_not_joined_to_the_footer(af: agentformer.AgentFormer) -> None:
    pages = [
        [f"{name} speaks of boats that are lifted in spring.", "The crane then works automa-", "", f"Harbour rules {n}"]
        for n, name in enumerate(("Anna", "Bertil", "Cecilia", "David", "Erik"), 1)
    ]
    document = af.rag.upload(make_pdf(pages), name="rules.pdf")
    assert all("automa-\n" in page.text and "automaHarbour" not in page.text for page in af.rag.pages(document.id))


def test_a_file_without_permission_is_refused(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("secret")
    path.chmod(0)
    with ordinary_user(), pytest.raises(InvalidInput, match="permission denied"):
        af.rag.upload(path)


def test_a_document_is_described_the_same_by_upload_and_list(af: agentformer.AgentFormer) -> None:
    uploaded = af.rag.upload(make_pdf([[KEYS], [BOATS]]), name="rules.pdf", metadata={"site": "north"})
    listed = af.rag.documents()[0]
    assert dataclasses.asdict(listed) == dataclasses.asdict(uploaded)
    assert (listed.pages, listed.media_type, listed.metadata) == (2, "application/pdf", {"site": "north"})
