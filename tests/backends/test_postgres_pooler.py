"""Tenants behind a pooler in transaction mode: each connection of the server serves all of them, one transaction at a
time, and no tenant reads or writes the schema of another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from agentformer.errors import StoreError
from agentformer.factory import AgentFormer, connect
from agentformer.memory.backends.postgres import vectors
from agentformer.memory.backends.postgres.database import PostgresDatabase, drop_schema
from agentformer.types import Scope
from tests.backends.pooler import Pooler, pgbouncer
from tests.edges.running import wait_until

TENANTS = ("pooled_one", "pooled_two", "pooled_three")


@pytest.fixture(params=["ours", "pgbouncer"])
def pooled_url(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as ending:
        for tenant in TENANTS:
            ending.callback(drop_schema, postgres_url, tenant)
        if request.param == "ours":
            yield ending.enter_context(closing(Pooler(postgres_url, 8))).url
        else:
            yield ending.enter_context(pgbouncer(postgres_url, tmp_path)).url


def opened(url: str, tenant: str, folder: Path, **settings: Any) -> AgentFormer:
    places = {"index_dir": folder / "i", "upload_dir": folder / "u", "originals": "database"}
    names = {"backend": "postgres", "postgres_url": url, "postgres_schema": tenant}
    return connect(**places, **names, embedder="hashing", clean_every=0, **settings)


def work(af: AgentFormer, tenant: str, turn: int) -> None:
    """Read and write everything that a store has: entries, vectors, words, documents, files, keys, locks and leases."""
    fact = af.memory.store(f"The fact {turn} of {tenant}.", kind="fact")
    af.memory.update(fact.id, content=f"The changed fact {turn} of {tenant}.")
    document = af.rag.upload(f"Page {turn} of {tenant}. ".encode() * 9, name=f"{turn}.txt")
    assert af.rag.original(document.id).startswith(f"Page {turn} of {tenant}".encode())
    found = af.memory.search(f"fact {turn} {tenant}", limit=50)
    assert found and all(tenant in hit.entry.content for hit in found)
    assert af.backend.lease("cleaning", tenant, 60) is True
    af.keys.make(f"{tenant} {turn}")
    assert {tenant} == {key.name.split()[0] for key in af.keys.all()}
    if turn % 2:
        af.rag.remove(document.id)


def test_no_tenant_meets_another_one(pooled_url: str, postgres_url: str, tmp_path: Path) -> None:
    turns, errors = 6, list[BaseException]()
    with ExitStack() as open_memories:
        memories = {
            tenant: open_memories.enter_context(opened(pooled_url, tenant, tmp_path / tenant)) for tenant in TENANTS
        }

        def run(tenant: str) -> None:
            try:
                for turn in range(turns):
                    work(memories[tenant], tenant, turn)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=[tenant]) for tenant in TENANTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        if errors:
            raise errors[0]
        for af in memories.values():
            af.backend.join("tester")
            assert {node.role for node in af.backend.nodes()} == {"tester"}
            assert sum(check.found for check in af.verify()) == 0
    for tenant in TENANTS:
        with opened(postgres_url, tenant, tmp_path / tenant) as af:
            entries = [entry for entry in af.backend.list(Scope(), limit=999) if entry.kind != "document"]
            assert len([entry for entry in entries if entry.kind == "fact"]) == turns
            assert all(tenant in entry.content for entry in entries)
            assert len(af.rag.documents()) == turns // 2
            assert len(af.keys.all()) == turns
            assert sum(check.found for check in af.verify()) == 0


@pytest.mark.parametrize("pooler", ["ours", "pgbouncer"])
def test_two_thousand_writes_through_one_connection_stay_in_their_schemas(
    pooler: str, postgres_url: str, tmp_path: Path
) -> None:
    writes, errors = 1_000, list[BaseException]()
    with ExitStack() as ending:
        for tenant in TENANTS[:2]:
            ending.callback(drop_schema, postgres_url, tenant)
        if pooler == "ours":
            url = ending.enter_context(closing(Pooler(postgres_url, 1))).url
        else:
            url = ending.enter_context(pgbouncer(postgres_url, tmp_path, 1)).url

        def run(tenant: str, af: AgentFormer) -> None:
            try:
                for number in range(writes):
                    af.memory.store(f"{tenant} {number}", kind="fact")
            except BaseException as error:
                errors.append(error)

        memories = [ending.enter_context(opened(url, tenant, tmp_path / tenant)) for tenant in TENANTS[:2]]
        threads = [threading.Thread(target=run, args=pair) for pair in zip(TENANTS, memories, strict=False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        if errors:
            raise errors[0]
        with psycopg.connect(postgres_url) as raw:
            for tenant in TENANTS[:2]:
                query = f"SELECT split_part(content, ' ', 1), count(*) FROM {tenant}.entries GROUP BY 1"
                assert raw.execute(query.encode()).fetchall() == [(tenant, writes)]


def test_a_pooler_that_is_killed_and_started_again_loses_no_write(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as ending:
        ending.callback(drop_schema, postgres_url, TENANTS[0])
        pooler = ending.enter_context(pgbouncer(postgres_url, tmp_path))
        af = ending.enter_context(opened(pooler.url, TENANTS[0], tmp_path))
        stored, failed, stop = list[str](), list[str](), threading.Event()

        def write(number: int) -> None:
            while not stop.is_set():
                content = f"note {number} {len(stored)} {len(failed)}"
                try:
                    stored.append(af.memory.store(content, kind="fact").content)
                except StoreError:
                    failed.append(content)

        def stored_more(count: int) -> None:
            before = len(stored)
            wait_until(lambda: len(stored) >= before + count)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(3):
                stored_more(20)
                pooler.kill()
                time.sleep(0.5)
                pooler.start()
            stored_more(20)
        finally:
            stop.set()
            for writer in writers:
                writer.join(60)
        found = [entry.content for entry in af.backend.list(Scope(), limit=10_000)]
        assert {*stored} <= {*found} <= {*stored, *failed} and len(found) == len({*found})
        assert sum(check.found for check in af.verify()) == 0


def test_nothing_is_left_in_the_connections_of_the_pooler(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as ending:
        ending.callback(drop_schema, postgres_url, TENANTS[0])
        pooler = ending.enter_context(closing(Pooler(postgres_url, 5)))
        af = ending.enter_context(opened(pooler.url, TENANTS[0], tmp_path))
        for turn in range(8):
            work(af, TENANTS[0], turn)
        with af.backend._database.lock("anything", wait=True):
            pass
        seen = []
        for _ in range(10):
            with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as raw:
                query = (
                    "SELECT current_setting('search_path'), (SELECT count(*) FROM pg_prepared_statements), "
                    "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), "
                    "(SELECT count(*) FROM pg_settings WHERE source = 'session' AND name <> 'application_name')"
                )
                seen.append(raw.execute(query).fetchone())
        assert set(seen) == {('"$user", public', 0, 0, 0)}


def test_an_index_of_vectors_is_created_through_the_pooler(
    pooled_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "INDEXED_FROM", 20)
    with opened(pooled_url, TENANTS[0], tmp_path) as af, opened(pooled_url, TENANTS[1], tmp_path / "two") as other:
        for memory in (af, other):
            for number in range(30):
                memory.memory.store(f"Boat {number} is blue.")
        af.backend._vectors._build()
        assert af.backend._vectors.problem == ""
        assert (af.backend.status()["index"]["kind"], other.backend.status()["index"]["kind"]) == ("hnsw", "exact")
        assert len(af.memory.search("boat 7", limit=3)) == 3


def test_a_process_that_was_opened_before_a_migration_writes_nothing(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as ending:
        ending.callback(drop_schema, postgres_url, TENANTS[0])
        af = ending.enter_context(opened(postgres_url, TENANTS[0], tmp_path))
        stored = af.memory.store("Aino prefers tea.")
        for change in ("+ 1", "- 1"):
            _execute(postgres_url, f"UPDATE {TENANTS[0]}.schema_version SET version = version {change}")
            if change == "- 1":
                break
            for write in (
                lambda: af.memory.store("Aino prefers coffee."),
                lambda: af.memory.remove(stored.id),
                lambda: af.backend.files.put("x", b"1"),
                lambda: af.backend.lease("cleaning", "me", 60),
            ):
                with pytest.raises(StoreError, match="a newer version of agentformer wrote this store"):
                    write()
            assert af.memory.get(stored.id).content == "Aino prefers tea."
        assert af.memory.store("Aino prefers milk.").content == "Aino prefers milk."
        assert len(af.memory.list()) == 2


def test_each_schema_has_an_owner_of_its_own(postgres_url: str, tmp_path: Path) -> None:
    owners = {}
    with ExitStack() as ending:
        for tenant in TENANTS:
            ending.callback(drop_schema, postgres_url, tenant)
            for _ in range(2):
                with closing(PostgresDatabase(postgres_url, tenant)) as database:
                    owners.setdefault(tenant, set()).add(database.owner())
    assert all(len(each) == 1 for each in owners.values()) and len(set.union(*owners.values())) == 3


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute(statement.encode())
