"""The backend `postgres` on a bad network, with a wrong password, and on servers that restart or fail over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, StoreBusy, StoreError
from agentformer.memory.backends.postgres import pool
from agentformer.memory.backends.postgres.backend import PostgresMemoryBackend, PostgresOptions
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.database import PostgresDatabase
from agentformer.memory.backends.postgres.server import ServerUnreachable, open_connection
from agentformer.testing import make_entry
from agentformer.testing.case import EVERYTHING, run_in_threads
from agentformer.types import Query
from tests.backends.postgres_faults import Proxy, Server, own_server
from tests.backends.postgres_server import schema_of

pytestmark = pytest.mark.process


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    proxy = Proxy(parse_qs(urlsplit(postgres_url).query)["host"][0])
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that a test may stop and has to start again."""
    with own_server() as server:
        yield server


@pytest.fixture
def failing_server() -> Iterator[Server]:
    """A server that a test may leave stopped."""
    with own_server() as server:
        yield server


def _open(url: str, folder: Path, connections: int = 16) -> PostgresMemoryBackend:
    return PostgresMemoryBackend(
        url, HashingEmbedder(), PostgresOptions(schema=schema_of(folder), connections=connections)
    )


def _execute(url: str, *statements: str) -> None:
    with open_connection(url) as raw:
        for statement in statements:
            raw.execute(statement.encode())


def _is_commit(data: bytes) -> bool:
    return b"COMMIT\0" in data


@pytest.mark.parametrize("what", ["paused", "answer lost", "request lost"])
def test_a_network_that_fails_during_a_commit_makes_no_duplicate(proxy: Proxy, tmp_path: Path, what: str) -> None:
    """If the request is lost, the transaction stays open at the server and has the lock of the writers."""
    backend = _open(proxy.url, tmp_path)
    assert backend.count(EVERYTHING) == 0  # a new connection has commits of its own
    entry, seen = make_entry("a heron at the lake"), threading.Event()

    def lose(data: bytes) -> str:
        if not _is_commit(data) or seen.is_set():
            return ""
        seen.set()
        if what == "paused":
            time.sleep(0.5)
        return "cut" if what == "request lost" else ""

    def lose_answer(_: bytes) -> str:
        if what != "answer lost" or not seen.is_set() or lost:
            return ""
        lost.append(True)
        return "cut"

    lost: list[bool] = []
    proxy.lose, proxy.lose_answer = lose, lose_answer
    backend.store([entry])
    assert seen.is_set() and bool(lost) is (what == "answer lost")
    assert backend.list(EVERYTHING) == backend.get([entry.id]) and len(backend.list(EVERYTHING)) == 1
    assert [hit.entry.id for hit in backend.search(Query("heron"))] == [entry.id]
    assert not [check for check in backend.verify() if check.found]
    backend.close()


def test_every_call_of_a_writer_on_a_bad_network_is_stored_once(proxy: Proxy, tmp_path: Path) -> None:
    backend = _open(proxy.url, tmp_path)
    packets = [0]

    def lose(_: bytes) -> str:
        packets[0] += 1
        return "cut" if packets[0] % 97 == 0 else ""

    proxy.lose = lose
    for n in range(12):
        (entry,) = backend.store([make_entry(f"note {n}")])
        backend.update(entry.id, {"title": f"title {n}"})
    proxy.lose = lambda _: ""
    entries = backend.list(EVERYTHING)
    assert packets[0] > 200 and sorted(entry.content for entry in entries) == sorted(f"note {n}" for n in range(12))
    assert {entry.version for entry in entries} == {2}
    assert not [check for check in backend.verify() if check.found]
    backend.close()


def test_a_commit_of_which_nothing_can_be_learned_is_an_error(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentformer.memory.backends.postgres.database._DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(pool, "_PATIENCE", 0.0)
    backend = _open(proxy.url, tmp_path)
    assert backend.count(EVERYTHING) == 0
    gone = threading.Event()

    def lose(data: bytes) -> str:
        if _is_commit(data):
            gone.set()
        return "cut" if gone.is_set() else ""

    proxy.lose = lose
    entry = make_entry("a heron in doubt")
    with pytest.raises(StoreError, match="it is not known whether the change is stored"):
        backend.store([entry])
    proxy.lose = lambda _: ""
    backend.store([entry])
    assert backend.list(EVERYTHING) == backend.get([entry.id])
    backend.close()


def test_an_at_sign_in_the_password_is_named_and_nothing_of_it_is_shown(tmp_path: Path) -> None:
    """Without its escape, the driver takes the end of the password for a part of the host."""
    with pytest.raises(InvalidInput, match="write an @ in the password as %40") as caught:
        PostgresDatabase("postgresql://postgres:S3cr@etPw@localhost:1/postgres", schema_of(tmp_path))
    assert "etPw" not in str(caught.value) and "S3cr" not in str(caught.value)


def test_a_wrong_password_is_named_and_not_shown(postgres_url: str, tmp_path: Path) -> None:
    role = schema_of(tmp_path)
    hba = Path(parse_qs(urlsplit(postgres_url).query)["host"][0]) / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"local all {role} scram-sha-256\n{before}")
    try:
        _execute(postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'richtig'", "SELECT pg_reload_conf()")
        url = postgres_url.replace("postgres:@", f"{role}:geheim@")
        for wrong in (url, url.replace(":geheim", "")):
            deadline = time.monotonic() + 60
            while True:  # the server reloads its configuration in the background
                with pytest.raises(StoreError) as caught:
                    PostgresDatabase(wrong, role)
                if "refused the login" in str(caught.value) or time.monotonic() > deadline:
                    break
            assert "refused the login" in str(caught.value) and "geheim" not in str(caught.value)
            assert not isinstance(caught.value, ServerUnreachable)
    finally:
        hba.write_text(before)
        _execute(postgres_url, "SELECT pg_reload_conf()")
    with pytest.raises(StoreError, match="no such database"):
        PostgresDatabase(postgres_url.replace("/postgres?", "/no_such?"), role)


def test_callers_wait_for_a_free_connection(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _open(postgres_url, tmp_path, connections=2)
    ids = run_in_threads(6, lambda n: backend.store([make_entry(f"a heron {n}")])[0].id)
    assert {entry.id for entry in backend.list(EVERYTHING)} == {*ids}
    monkeypatch.setattr(pool, "_WAIT", 0.1)
    with backend.snapshot(), backend.snapshot():  # a thread may have further connections
        assert backend.count(EVERYTHING) == 6

    def hold() -> None:
        with backend.snapshot():
            held.release()
            done.wait(60)

    done, held = threading.Event(), threading.Semaphore(0)
    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
        held.acquire()
    try:
        with pytest.raises(StoreBusy, match="AGENTFORMER_POSTGRES_CONNECTIONS"):
            backend.count(EVERYTHING)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert backend.count(EVERYTHING) == 6
    backend.close()


def test_later_calls_of_a_thread_reuse_its_connections(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(pool, "open_connection", lambda url: opened.append(url) or open_connection(url))
    backend = _open(postgres_url, tmp_path)
    for n in range(4):
        backend.store([make_entry(f"a heron {n}")])
        assert backend.search(Query("heron")) and backend.count(EVERYTHING) == n + 1
        if not n:
            before = len(opened)
    assert len(opened) == before > 0
    backend.close()


def test_calls_wait_for_a_server_that_restarts(server: Server, tmp_path: Path) -> None:
    url = f"postgresql://postgres@/postgres?host={server.data}"
    backend = _open(url, tmp_path)
    backend.store([make_entry("note 0")])
    server.ctl("stop", "-m", "immediate")
    back = threading.Timer(1.0, server.start)
    back.start()
    (entry,) = backend.store([make_entry("note 1")])
    back.join()
    assert next(hit.entry.id for hit in backend.search(Query("note 1"))) == entry.id
    assert backend.count(EVERYTHING) == 2
    backend.close()


def test_a_commit_lost_in_a_crash_is_not_taken_for_a_later_transaction(server: Server, tmp_path: Path) -> None:
    """The server crashes before anything of a transaction is on the disk, and gives its number to another one."""
    url = f"postgresql://postgres@/postgres?host={server.data}"
    _execute(url, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
    backend, other = _open(url, tmp_path), _open(url, tmp_path)
    backend.store([make_entry("a heron")])
    write_words, numbers = backend._database.before_commit, []
    assert write_words is not None

    def crash(connection: PostgresConnection, since: int) -> None:
        write_words(connection, since)
        if not numbers:
            numbers.append(connection.execute("SELECT pg_current_xact_id()::text").fetchone()[0])
            server.ctl("stop", "-m", "immediate")
            server.start()
            other.store([make_entry("a crane")])

    backend._database.before_commit = crash
    entry = make_entry("a stork")
    backend.store([entry])
    with other._database.reading() as raw:
        status = raw.execute("SELECT pg_xact_status(%s::text::xid8)", numbers).fetchone()[0]
    assert status == "committed"  # the number is that of the other transaction now
    assert backend.get([entry.id]) and sorted(e.content for e in other.list(EVERYTHING)) == [
        "a crane",
        "a heron",
        "a stork",
    ]
    backend.close()
    other.close()


def test_a_promoted_standby_goes_on(failing_server: Server, tmp_path: Path) -> None:
    """The address names both servers. The entries that the standby received are there once."""
    server = failing_server
    standby = server.standby()
    hosts = f"host={server.data},{standby.data}&target_session_attrs=read-write"
    backend = _open(f"postgresql://postgres@/postgres?{hosts}", tmp_path)
    _execute(
        f"postgresql://postgres@/postgres?host={server.data}",
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "SELECT pg_reload_conf()",
    )
    stored, stop, errors = [entry.id for entry in backend.store([make_entry("note 0")])], threading.Event(), []

    def write() -> None:
        while not stop.wait(0.01):
            try:
                stored.append(backend.store([make_entry(f"note {len(stored)}")])[0].id)
            except StoreError as error:
                errors.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.5)
        server.ctl("stop", "-m", "immediate")
        before = len(stored)
        standby.ctl("promote")
        deadline = time.monotonic() + 60
        while len(stored) < before + 5 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        stop.set()
        writer.join()
    found = [entry.id for entry in backend.list(EVERYTHING, limit=10_000)]
    assert len(stored) >= before + 5 and {*stored} <= {*found} and len(found) <= len(stored) + len(errors)
    assert not [check for check in backend.verify() if check.found]
    backend.close()
