"""Original files in a bucket: the life of a document, what is deleted, and what is said when the store fails."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import InvalidInput, NotFound, StoreBusy, StoreError
from agentformer.factory import AgentFormer, connect
from agentformer.rag import file_stores
from agentformer.rag.file_stores import S3Files

# The libraries are only looked for, because the import takes half a second that other runs need not wait for.
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (find_spec("boto3") and find_spec("moto")), reason="boto3 or moto is not installed"),
]

TEXT = b"The numbat sleeps in a log. " * 5
OTHER = b"The quokka smiles. " * 5
SECRET = "wJalrXUtnFEMI"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Start a server of the S3 protocol on a free port, and return its address."""
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    credentials = {"ACCESS_KEY_ID": "AKIDEXAMPLE", "SECRET_ACCESS_KEY": SECRET, "DEFAULT_REGION": "eu-north-1"}
    for name, value in {**credentials, "ENDPOINT_URL_S3": store, "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    name = f"b{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20]}"
    client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-north-1"})
    return name


@pytest.fixture
def af(bucket: str, tmp_path: Path) -> Iterator[AgentFormer]:
    with opened(bucket, tmp_path) as memory:
        yield memory


def opened(bucket: str, folder: Path) -> AgentFormer:
    places = {"index_dir": folder / "i", "upload_dir": folder / "u", "originals": f"s3://{bucket}/agent/files"}
    return connect(**places, embedder="hashing", embed_retry_seconds=0)  # type: ignore[arg-type]


def client() -> Any:
    return importlib.import_module("boto3").client("s3")


def keys(bucket: str) -> list[str]:
    return sorted(item["Key"] for item in client().list_objects_v2(Bucket=bucket).get("Contents", []))


def key_of(af: AgentFormer, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    assert af.originals.owner
    return f"agent/files/memory-{af.originals.owner.id}/{digest[:2]}/{digest}.bin"


def test_a_document_is_stored_read_replaced_and_removed(af: AgentFormer, bucket: str) -> None:
    stored = af.rag.upload(TEXT, name="numbat.txt")
    af.rag.upload(TEXT, name="the same.txt")
    assert keys(bucket) == [key_of(af, TEXT)]
    assert af.rag.original(stored.id) == TEXT
    assert not [path for path in af.settings.upload_dir.rglob("*") if path.suffix == ".bin"]
    af.rag.upload(OTHER, name="numbat.txt")
    assert keys(bucket) == sorted([key_of(af, TEXT), key_of(af, OTHER)])  # the other document has the former bytes
    for document in af.rag.documents():
        af.rag.remove(document.id)
    assert keys(bucket) == []


def test_an_upload_that_was_killed_leaves_no_file(af: AgentFormer, bucket: str, tmp_path: Path) -> None:
    stored = af.rag.upload(TEXT, name="numbat.txt")
    af.backend.remove([stored.id])  # the process is killed before the sweep
    assert keys(bucket) == [key_of(af, TEXT)]
    opened(bucket, tmp_path).close()
    assert keys(bucket) == []


def test_a_missing_and_a_damaged_file_are_found_and_restored(af: AgentFormer, bucket: str) -> None:
    stored = af.rag.upload(TEXT, name="numbat.txt")
    s3 = client()
    s3.put_object(Bucket=bucket, Key=key_of(af, TEXT), Body=TEXT.swapcase())
    s3.put_object(Bucket=bucket, Key="agent/files/mine.txt", Body=b"mine")
    found = {check.name: check for check in af.verify()}
    assert found["originals"].found == 1 and "was changed" in found["originals"].findings[0]
    assert "1 file (4 bytes)" in " ".join(found["uploads"].findings)
    af.rag.upload(TEXT, name="numbat.txt")
    assert af.rag.original(stored.id) == TEXT
    s3.delete_object(Bucket=bucket, Key=key_of(af, TEXT))
    with pytest.raises(NotFound, match="ingest the file again"):
        af.rag.original(stored.id)
    af.rag.upload(TEXT, name="numbat.txt")
    assert af.rag.original(stored.id) == TEXT
    assert {check.name: check.found for check in af.verify()}["originals"] == 0


def test_a_backup_and_an_export_have_the_files(af: AgentFormer, tmp_path: Path) -> None:
    af.rag.upload(TEXT, name="numbat.txt")
    assert af.backup(tmp_path / "backup").originals == 1
    assert af.export_to(tmp_path / "export").originals == 1
    with connect(index_dir=tmp_path / "i2", upload_dir=tmp_path / "u2", embedder="hashing") as other:
        other.import_from(tmp_path / "export")
        assert other.rag.original(other.rag.documents()[0].id) == TEXT


def test_more_files_than_one_request_deletes(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_stores, "_DELETED_AT_ONCE", 2)
    files = S3Files(f"s3://{bucket}")
    digests = {hashlib.sha256(data).hexdigest(): data for data in (b"1", b"2", b"3", b"4", b"5")}
    for digest, data in digests.items():
        files.put(digest, data)
    assert sorted(files.names().values()) == sorted(digests)
    files.delete(list(digests))
    assert files.names() == {}


def test_a_server_that_is_gone_stores_nothing_and_says_so(
    af: AgentFormer, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free.getsockname()[1]}")
    with opened(bucket, tmp_path) as other:
        with pytest.raises(StoreBusy, match="cannot be reached") as raised:
            other.rag.upload(TEXT, name="numbat.txt")
        assert SECRET not in str(raised.value)
        assert other.rag.documents() == []
        other.memory.store("Memories need no original files.")
    with pytest.raises(StoreBusy):
        S3Files(f"s3://{bucket}").names()


def test_each_refusal_says_what_to_do(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="does not exist; create it"):
        S3Files("s3://no-such-bucket-here").put(hashlib.sha256(TEXT).hexdigest(), TEXT)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match="complete credentials"):
        S3Files(f"s3://{bucket}").names()
    with pytest.raises(InvalidInput, match="s3://BUCKET/PREFIX"):
        connect(originals="https://bucket")


def test_memories_that_share_a_prefix_keep_their_files(af: AgentFormer, bucket: str, tmp_path: Path) -> None:
    """Another memory, a copy of the index folder, and a file of a version without owners."""
    stored = af.rag.upload(TEXT, name="numbat.txt")
    shutil.copytree(tmp_path / "i", tmp_path / "copy" / "i")
    with opened(bucket, tmp_path / "other") as other, opened(bucket, tmp_path / "copy") as copy:
        same = other.rag.upload(TEXT, name="numbat.txt")
        assert keys(bucket) == sorted(key_of(each, TEXT) for each in (af, other, copy))
        other.rag.remove(same.id)
        assert copy.rag.original(stored.id) == TEXT
        copy.rag.remove(stored.id)
        assert af.rag.original(stored.id) == TEXT and keys(bucket) == [key_of(af, TEXT)]
    digest = hashlib.sha256(TEXT).hexdigest()
    former = f"agent/files/{digest[:2]}/{digest}.bin"
    client().copy_object(Bucket=bucket, Key=former, CopySource={"Bucket": bucket, "Key": key_of(af, TEXT)})
    client().delete_object(Bucket=bucket, Key=key_of(af, TEXT))
    assert af.rag.original(stored.id) == TEXT
    af.rag.remove(stored.id)
    assert keys(bucket) == [former]
