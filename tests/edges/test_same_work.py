"""A key without the right to read learns nothing from the work for a text or a file: a known one is read and embedded
like a new one, and the answer is that of a new one."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable
from agentformer.rag import ingest
from tests.edges.mounted import SAME, Mounted, grant, mounted
from tests.readers.conftest import make_pdf

WRITER = grant("write")
KNOWN, NEW = "The boat is red.", "The goat is bad."


class Work:
    """The texts that are embedded and the files that are read. If `away` is set, the embedder is unavailable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts, self.files, self.away = 0, 0, False
        embed, read = HashingEmbedder.embed_documents, ingest.read

        def counted_embed(embedder: HashingEmbedder, texts: Sequence[str]) -> Any:
            self.texts += len(texts)
            if self.away:
                raise EmbedderUnavailable("the model is not there")
            return embed(embedder, texts)

        def counted_read(*arguments: Any, **options: Any) -> Any:
            self.files += 1
            return read(*arguments, **options)

        monkeypatch.setattr(HashingEmbedder, "embed_documents", counted_embed)
        monkeypatch.setattr(ingest, "read", counted_read)

    def taken(self) -> tuple[int, int]:
        """Return the work since the last call."""
        done = self.texts, self.files
        self.texts = self.files = 0
        return done


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        host.af.memory.store(KNOWN)
        host.af.rag.upload(KNOWN.encode(), name="known.txt")
        yield host


def send(host: Mounted, door: str, text: str, name: str, asking: Any = WRITER, **form: str) -> tuple[int, str]:
    """Add a text or a file, and return the status and the answer without what the request itself said."""
    if door == "upload":
        data = {"file": (io.BytesIO(text.encode()), name), **form}
        answer = host.ask("POST", "/api/rag/upload", asking, data=data, headers=SAME)
    else:
        bodies: dict[str, Any] = {
            "": {"content": text},
            "/batch": {"items": [{"content": text}]},
            "rag_upload": {"name": name, "content_base64": base64.b64encode(text.encode()).decode()},
            "memory_add": {"content": text},
        }
        path = f"/api/memory{door}" if door in ("", "/batch") else f"/api/tools/{door}"
        answer = host.post(path, bodies[door], asking, headers=SAME)
    told = answer.text.replace(name, "NAME")
    if answer.text:
        value = json.loads(answer.text)
        for document in (*value.get("documents", ()), value.get("result", {}).get("document", {})):
            document.pop("sha256", None)
        told = json.dumps(value).replace(name, "NAME")
    return answer.status_code, told


@pytest.mark.parametrize("door", ["", "/batch", "memory_add", "upload", "rag_upload"])
def test_a_known_text_takes_the_work_of_a_new_one(host: Mounted, work: Work, door: str) -> None:
    work.taken()
    new = send(host, door, NEW, "novel.txt"), work.taken()
    known = send(host, door, KNOWN, "known.txt"), work.taken()
    assert new == known
    assert known[1] == (1, int("upload" in door))
    again = send(host, door, NEW, "novel.txt"), work.taken()
    assert again == new


@pytest.mark.parametrize("door", ["upload", "rag_upload"])
def test_while_the_embedder_is_away_a_known_file_waits_like_a_new_one(host: Mounted, work: Work, door: str) -> None:
    work.away = True
    known = send(host, door, KNOWN, "known.txt")
    assert known == send(host, door, NEW, "novel.txt")
    assert '"pending"' in known[1]


def test_a_reader_is_told_that_a_file_is_unchanged_without_further_work(host: Mounted, work: Work) -> None:
    work.taken()
    status, answer = send(host, "upload", KNOWN, "known.txt", grant("read", "write"))
    assert (status, json.loads(answer)["documents"][0]["unchanged"], work.taken()) == (201, True, (0, 0))


@pytest.mark.process  # pypdf looks for a program
def test_a_known_encrypted_file_is_not_ready_without_its_password(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    writer, files = pypdf.PdfWriter(clone_from=io.BytesIO(make_pdf([["The boat is red."]]))), []
    writer.encrypt("secret", algorithm="AES-256")
    stream = io.BytesIO()
    writer.write(stream)
    with mounted(tmp_path) as host:
        assert host.af.rag.upload(stream.getvalue(), name="a.pdf", password="secret").status == "ready"
        for name, password in (("a.pdf", ""), ("b.pdf", ""), ("a.pdf", "secret")):
            data = {"file": (io.BytesIO(stream.getvalue()), name), **({"password": password} if password else {})}
            answer = host.ask("POST", "/api/rag/upload", WRITER, data=data)
            files.append((answer.status_code, answer.json["documents"][0]["status"]))
    assert files == [(422, "encrypted"), (422, "encrypted"), (201, "ready")]
