"""A store whose lock another writer holds for too long: 503 with `Retry-After`, and nothing is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.jobs import store as jobs_store
from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.memory.backends.local_json import folder
from agentformer.records.sqlite import database
from tests.edges.mounted import Mounted, mounted


@contextmanager
def held(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def refused(host: Mounted) -> None:
    answer = host.post("/api/memory/messages", {"content": "x", "session_id": "s", "role": "user"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), answer.text
    assert answer.json["type"] == "urn:agentformer:problem:store-busy" and "detail" not in answer.json


@pytest.mark.usefixtures("faiss_files")
def test_a_database_that_another_writer_holds_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with mounted(tmp_path) as host:
        host.add("so that the file exists")
        host.af.memory.remove(host.af.memory.list()[0].id)
        with held(tmp_path / "i" / DATABASE_FILE):
            refused(host)
        assert host.af.memory.list() == []
        host.add("x")


def test_a_folder_that_another_writer_holds_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_LOCK_SECONDS", 0.05)
    with mounted(tmp_path, backend="local_json") as host:
        with FileLock(tmp_path / "i" / folder.LOCK_FILE):
            refused(host)
        assert host.af.memory.list() == []
        host.add("x")


@pytest.mark.usefixtures("faiss_files")
def test_a_job_queue_that_another_writer_holds_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_store, "_BUSY_SECONDS", 0.05)

    def upload(host: Mounted) -> int:
        file = {"file": ((tmp_path / "a.txt").open("rb"), "a.txt")}
        answer = host.ask("POST", "/api/rag/upload", data=file, headers={"Prefer": "respond-async"})
        assert answer.status_code != 503 or answer.headers["Retry-After"] == "5"
        return int(answer.status_code)

    (tmp_path / "a.txt").write_text("The boat is red.")
    with mounted(tmp_path) as host:
        assert upload(host) == 202
        with held(tmp_path / "i" / "jobs.sqlite"):
            assert upload(host) == 503
