"""Originals, upload jobs and API keys of several nodes: every node serves the files and accepts the keys, and another
node continues the jobs."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import Timeout

from agentformer.access.keys import KeyStore
from agentformer.builders import open_keys
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, NotFound, Unauthenticated
from agentformer.factory import AgentFormer, connect
from agentformer.jobs.queue import Jobs
from agentformer.jobs.shared import SharedJobFiles, SharedJobStore
from agentformer.memory.backends.postgres.backend import PostgresOptions
from agentformer.memory.distributed import DistributedMemory
from agentformer.memory.nodes import sharing
from agentformer.testing.case import run_in_threads
from agentformer.types import new_id
from tests.backends.postgres_server import schema_of
from tests.jobs.helpers import RecordingIngestor, files, task, until

pytestmark = pytest.mark.process
TEXT = b"The heron sleeps in the reed. " * 5
Open = Callable[[str], AgentFormer]
Machine = tuple[DistributedMemory, Jobs, RecordingIngestor]


@pytest.fixture
def machine(postgres_url: str, tmp_path: Path) -> Iterator[Open]:
    """Open one store on several machines, each with folders of its own."""
    opened = []

    def open_memory(name: str) -> AgentFormer:
        folders = {"index_dir": tmp_path / name / "i", "upload_dir": tmp_path / name / "u"}
        shared = {"postgres_url": postgres_url, "postgres_schema": schema_of(tmp_path), "originals": "database"}
        opened.append(connect(**folders, **shared, backend="postgres", embedder="hashing", embed_retry_seconds=0))  # type: ignore[arg-type]
        return opened[-1]

    yield open_memory
    for memory in opened:
        memory.close()


def test_every_node_serves_an_original_in_the_database(machine: Open, tmp_path: Path) -> None:
    one, other = machine("one"), machine("other")
    document = one.rag.upload(TEXT, name="heron.txt")
    digest = hashlib.sha256(TEXT).hexdigest()
    assert other.originals.get(digest) == TEXT
    assert not list((tmp_path / "one" / "u").rglob("*.bin"))
    assert not [check for check in other.verify() if check.found]
    other.originals.files.put(digest, TEXT)  # stored already
    assert list(other.originals.files.names().values()) == [digest]
    other.rag.remove(document.id)
    with pytest.raises(NotFound, match="the PostgreSQL database"):
        one.originals.get(digest)
    assert one.originals.files.names() == {}


def test_a_large_or_damaged_or_empty_file_is_whole(machine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = machine("one").distributed
    assert memory is not None
    monkeypatch.setattr(sharing, "_PART", 10)
    for data in (b"", b"x" * 10, b"abc\0" * 99, b"shorter now"):
        memory.files.put("file", data)
        assert memory.files.get("file") == data
        assert memory.files.sha256("file") == hashlib.sha256(data).hexdigest()
        assert memory.files.sizes("fi") == {"file": len(data)}
    memory.files.delete("file", "missing")
    assert (memory.files.get("file"), memory.files.sha256("file"), memory.files.sizes("")) == (None, "", {})


def test_every_machine_accepts_the_keys_of_the_database(machine: Open, tmp_path: Path) -> None:
    former, secret = KeyStore(tmp_path / "one" / "i").make("before", namespaces=["lab"])  # before `backend=postgres`
    one, other = machine("one"), machine("other")
    assert not other.keys.ever_made  # nothing is copied until the machine with the keys reads them
    assert one.keys.grant_of(secret).namespaces == ("lab",)
    assert other.keys.grant_of(secret).key_id == former.id and not (tmp_path / "other" / "i" / "keys.json").exists()
    with open_keys(other.settings) as keys:  # `agentformer keys` on the other machine
        key, added = keys.make("office")
    assert one.keys.grant_of(added).key_id == key.id
    other.keys.revoke(former.id)
    with pytest.raises(Unauthenticated, match="revoked"):
        one.keys.grant_of(secret)
    other.keys.revoke(key.id)
    assert one.keys.all() == () and one.keys.ever_made
    one.keys.reset()
    assert not other.keys.ever_made  # the former file of the machine is not read again


def test_keys_of_the_database_are_changed_by_one_process_at_a_time_and_backed_up(machine: Open, tmp_path: Path) -> None:
    one, other = machine("one"), machine("other")
    assert one.distributed is not None and other.distributed is not None
    held, wanted = (memory.distributed.key_place(tmp_path) for memory in (one, other))
    with held.locked(0), pytest.raises(Timeout), wanted.locked(0.1):
        pass
    names = run_in_threads(4, lambda n: (one, other)[n % 2].keys.make(f"key {n}")[0].name)
    assert sorted(key.name for key in other.keys.all()) == sorted(names)
    one.backup(tmp_path / "backup")
    kept = KeyStore(tmp_path / "backup" / "indexes").all()
    assert kept == one.keys.all() and (tmp_path / "backup/indexes/keys.json").stat().st_mode & 0o777 == 0o600


def test_a_running_upload_of_another_node_keeps_its_file_until_its_node_dies(machine: Open) -> None:
    one, other = machine("one"), machine("other")
    digest = hashlib.sha256(TEXT).hexdigest()
    document = other.rag.upload(TEXT, name="heron.txt")
    uploaded = dataclasses.replace(one.backend.get([document.id])[0], id=new_id())
    with one.originals.storing([uploaded], [TEXT]):
        other.originals.sweep()
        other.rag.remove(document.id)
        assert other.originals.get(digest) == TEXT  # the upload on the first node needs it
        assert one.distributed is not None
        with one.distributed._database.statements() as connection:
            connection.execute("UPDATE leases SET ends_at = 0 WHERE name LIKE %s", ["lock/upload/%"])
        other.originals.sweep()  # as if the first node had died
        assert other.originals.files.names() == {}


def test_originals_in_the_database_need_a_database(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs the backend postgres"):
        connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", originals="database")


@pytest.fixture
def two(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """The job queues of two nodes."""
    made: list[Machine] = []
    for name in ("one", "other"):
        options = PostgresOptions(schema=schema_of(tmp_path))
        memory, ingestor = DistributedMemory(postgres_url, HashingEmbedder(), options), RecordingIngestor()
        shared = SharedJobStore(memory.records), SharedJobFiles(memory.files, memory.locks)
        folder = tmp_path / name
        made.append((memory, Jobs(folder, folder, ingestor, most=4, days=7.0, shared=shared), ingestor))
    yield made[0], made[1]
    for memory, jobs, _ in made:
        jobs.close()
        memory.close()


def test_another_node_continues_the_job_of_a_dead_one(two: tuple[Machine, Machine]) -> None:
    (memory, jobs, ingestor), (_, others, other) = two
    started, go = threading.Event(), threading.Event()

    def stop_at_the_second(name: str) -> None:
        if name == "b.txt":
            started.set()
            go.wait(60)

    ingestor.action = stop_at_the_second
    job = jobs.submit(task("a.txt", "b.txt"), files(b"heron", b"puffin"), "secret")
    assert started.wait(60)
    assert others.get(job.id).state == "running"
    with memory._database.statements() as connection:
        connection.execute("UPDATE leases SET ends_at = 0 WHERE name LIKE %s", ["lock/job/%"])
    others.start()
    ended = until(others, job.id)
    assert (ended.state, [document["name"] for document in ended.documents]) == ("done", ["a.txt", "b.txt"])
    assert other.ingested == [("b.txt", b"puffin", "secret")]  # the finished file is not read again
    go.set()
    jobs.close()
    assert others.get(job.id) == ended  # the late node changes nothing
    assert memory.files.sizes("job/") == {}


def test_jobs_are_listed_cancelled_and_run_once_on_all_nodes(two: tuple[Machine, Machine]) -> None:
    (_, jobs, ingestor), (_, others, other) = two
    jobs.start()
    others.start()
    ended = [jobs.submit(task(f"{n}.txt"), files(b"heron")) for n in range(3)]
    assert {until(others, job.id).state for job in ended} == {"done"}
    assert len(ingestor.ingested) + len(other.ingested) == 3
    assert [job.id for job in others.page([], limit=2)] == [ended[2].id, ended[1].id]
    go = threading.Event()
    for each in (ingestor, other):
        each.action = lambda name: go.wait(60)
    running = jobs.submit(task("long.txt"), files(b"heron"))
    until(jobs, running.id, lambda job: job.state == "running")
    assert others.cancel(running.id).cancelling
    go.set()
    assert until(others, running.id).state in ("cancelled", "done")
