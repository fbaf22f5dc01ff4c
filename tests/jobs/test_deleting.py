"""The jobs of a user are deleted with their files, also those that wait or run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import agentformer.jobs.queue as module
from agentformer.errors import StoreBusy
from agentformer.jobs.queue import delete_jobs_of, stored_jobs
from agentformer.jobs.store import Task
from agentformer.records.integrity.disk import holders
from tests.jobs.helpers import BOUND, RecordingIngestor, files, open_jobs, until


def of_user(user: str, *names: str, namespace: str = "default") -> Task:
    return Task(namespace, names, {"by": user}, user_id=user)


def test_the_jobs_of_one_user_in_one_namespace_are_deleted(tmp_path: Path) -> None:
    ingestor = RecordingIngestor()
    jobs = open_jobs(tmp_path, ingestor)
    ended = [
        jobs.submit(of_user("aino", "heron.txt"), files(b"a heron")),
        jobs.submit(of_user("väinö", "b.txt"), files(b"b")),
    ]
    ended.append(jobs.submit(of_user("aino", "c.txt", namespace="other"), files(b"c")))
    for job in ended:
        until(jobs, job.id)
    jobs.stop()
    jobs._worker.join(BOUND)
    waiting = jobs.submit(of_user("aino", "stork.txt"), files(b"a stork"), "a secret")
    store, stored = stored_jobs(tmp_path / "i", tmp_path / "u")
    assert delete_jobs_of(store, stored, "default", "aino") == 2
    assert {job.id for job in jobs.page([])} == {job.id for job in ended[1:]}
    assert not stored.has(waiting.id)
    folders = (tmp_path / "i", tmp_path / "u")
    assert not [text for text in ("heron", "stork", "a secret") if holders(folders, text)] and holders(folders, "b.txt")
    assert delete_jobs_of(store, stored, "default", "aino") == 0
    store.close()
    jobs.close()


def test_a_running_job_is_waited_for_and_stores_no_further_file(tmp_path: Path) -> None:
    ingestor, reading, may_go_on = RecordingIngestor(), threading.Event(), threading.Event()

    def read(name: str) -> None:
        reading.set()
        assert may_go_on.wait(BOUND)

    ingestor.action = read
    jobs = open_jobs(tmp_path, ingestor)
    job = jobs.submit(of_user("aino", "one.txt", "two.txt"), files(b"one", b"two"))
    assert reading.wait(BOUND)
    store, stored = stored_jobs(tmp_path / "i", tmp_path / "u")
    deleted: list[int] = []
    thread = threading.Thread(target=lambda: deleted.append(delete_jobs_of(store, stored, "default", "aino")))
    thread.start()
    deadline = time.monotonic() + BOUND
    while not jobs.get(job.id).cancelling:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert thread.is_alive() and stored.has(job.id)
    may_go_on.set()
    thread.join(BOUND)
    assert deleted == [1] and [name for name, *_ in ingestor.ingested] in (["one.txt"], [])
    assert jobs.page([]) == [] and not stored.has(job.id)
    store.close()
    jobs.close()


def test_a_job_that_does_not_end_is_an_error_and_nothing_of_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = open_jobs(tmp_path, RecordingIngestor())
    jobs.stop()
    job = jobs.submit(of_user("aino", "one.txt"), files(b"one"))
    store, stored = stored_jobs(tmp_path / "i", tmp_path / "u")
    held = stored.lock(job.id)
    assert held is not None
    monkeypatch.setattr(module, "_END_SECONDS", 0.0)
    with pytest.raises(StoreBusy, match="still running"):
        delete_jobs_of(store, stored, "default", "aino")
    assert stored.has(job.id) and jobs.get(job.id).cancelling
    held.release()
    assert delete_jobs_of(store, stored, "default", "aino") == 1 and not stored.has(job.id)
    store.close()
    jobs.close()
