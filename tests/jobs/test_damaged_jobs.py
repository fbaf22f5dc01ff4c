"""A damaged database of jobs, and a damaged job beside sound ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import StoreDamaged, StoreError
from agentformer.factory import connect
from agentformer.jobs.store import JobStore, Task
from tests.jobs.helpers import RecordingIngestor, files, open_jobs, task, until

DAMAGE: dict[str, Any] = {
    "names": '["a',
    "metadata": "[]",
    "documents": '[{"status": "ready"}, 3]',
    "created_at": "soon",
    "windows": "many",
}


@pytest.mark.parametrize("column", DAMAGE)
def test_a_damaged_job_is_a_typed_error_and_the_others_go_on(tmp_path: Path, column: str) -> None:
    ingestor = RecordingIngestor()
    (tmp_path / "i").mkdir()
    store = JobStore(tmp_path / "i" / "jobs.sqlite")
    store.add("damaged", task("a"), 9)
    with store.writing() as connection:
        connection.execute(f"UPDATE jobs SET {column} = ? WHERE id = 'damaged'", [DAMAGE[column]])
    folder = tmp_path / "u" / ".jobs" / "damaged"
    folder.mkdir(parents=True)
    (folder / "0").write_bytes(b"waits")
    with closing(open_jobs(tmp_path, ingestor)) as jobs:
        sound = jobs.submit(Task("default", ("b",), None), files(b"b"))
        assert until(jobs, sound.id).state == "done"
        with pytest.raises(StoreDamaged, match="the upload job damaged is damaged"):
            jobs.get("damaged")
    assert (folder / "0").read_bytes() == b"waits" and [name for name, *_ in ingestor.ingested] == ["b"]
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        (check,) = (each for each in af.verify() if each.name == "jobs")
    assert (check.looked_at, check.found) == (2, 1) and "the job damaged is damaged" in check.findings[0]


def test_no_damaged_byte_of_the_database_is_another_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with closing(JobStore(path)) as store:
        for number in range(20):
            store.add(f"job-{number:02}", task("a", "b"), 99)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    data, errors = path.read_bytes(), 0
    for place in range(0, len(data), 61):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            with closing(JobStore(path)) as store:
                for job in store.page([], "", 99):
                    job.as_json()
                store.active()
        except StoreError:
            errors += 1
        finally:
            for log in tmp_path.glob("jobs.sqlite-*"):
                log.unlink()
    assert errors > 0


def test_the_doctor_looks_at_the_keys(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        assert "keys" not in {check.name for check in af.verify()}
        af.keys.make("office")
        assert [check.looked_at for check in af.verify() if check.name == "keys"] == [1]
        file = tmp_path / "i" / "keys.json"
        for damaged in ('{"version": 1, "keys": [{}]}', file.read_text().replace("office", "offide")):
            file.write_text(damaged)
            (check,) = (each for each in af.verify() if each.name == "keys")
            assert check.found == 1 and "keys.json is damaged" in check.findings[0]
