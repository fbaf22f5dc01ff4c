"""Each statement of an operation on records has the same values in both databases, and both databases understand it."""

from __future__ import annotations

import importlib
import pkgutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.jobs.store import JobStore
from agentformer.memory.backends.postgres.scopes import where as postgres_condition
from agentformer.records.sqlite.database import Database
from agentformer.records.sqlite.scopes import where as sqlite_condition
from agentformer.types import Decay, Scope, Statement
from tests.backends.postgres_server import open_store, schema_of

ROOMS = ("index", "jobs", "memory.backends", "records", "search")
SCOPE = Scope(
    "default",
    tiers=("semantic",),
    except_kinds=("page",),
    user_id="u",
    or_nobody=True,
    metadata={"name": "a", "year": 2026, "tags": ["b"], "open": True, "none": None},
    where={"type": "and", "filters": [
        {"type": "in", "key": "$user_id", "value": ["u", "v"]},
        {"type": "not", "filters": [{"type": "gte", "key": "year", "value": 1.5}]},
        {"type": "lt", "key": "$title", "value": "m"},
        {"type": "nin", "key": "name", "value": ["c", 3, None]},
        {"type": "exists", "key": "name", "value": True},
    ]},
    min_salience=0.1,
    decay=Decay({"decision": 0.9}),
)  # fmt: skip


def statements() -> dict[str, Statement]:
    """Return the statements that are constants of a module, by their names."""
    found = {}
    for room in ROOMS:
        package = importlib.import_module(f"agentformer.{room}")
        modules = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        for module in (package, *(importlib.import_module(each.name) for each in modules)):
            for name, value in vars(module).items():
                found |= {f"{module.__name__}.{name}{place}": each for place, each in _statements(value)}
    return found


def _statements(value: Any) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Statement):
        yield "", value
    elif isinstance(value, (tuple, dict)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"[{key}]", each) for key, each in pairs if isinstance(each, Statement))


ALL = statements()


def test_the_statements_are_found() -> None:
    assert len(ALL) > 100


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_statement_has_the_same_values_in_both_databases(name: str) -> None:
    sqlite, postgres = ALL[name]
    among = sqlite.count("{among}")
    assert sqlite.count("?") + among == postgres.count("%s")
    lists = sum(postgres.count(each) for each in ("ANY(%s)", "unnest(%s", "jsonb_array_elements(%s"))
    assert sqlite.count("json_each(?)") + among == lists
    assert sqlite.count("{scope}") == postgres.count("{scope}") <= 1
    assert "?" not in postgres and "%s" not in sqlite and "{among}" not in postgres


def test_sqlite_understands_each_statement(tmp_path: Path) -> None:
    database, jobs = Database(tmp_path / "m.sqlite3"), JobStore(tmp_path / "jobs.sqlite")
    condition, values = sqlite_condition(SCOPE)
    with database.reading() as records, jobs.reading() as queue:
        for name, (query, _) in ALL.items():
            bound = [*(values if "{scope}" in query else ()), *["[]"] * (query.count("?") + query.count("{among}"))]
            text = query.replace("{scope}", condition).replace("{among}", "?")
            try:
                (queue if ".jobs." in name else records).execute(f"EXPLAIN {text}", bound)
            except sqlite3.Error as error:
                pytest.fail(f"{name}: {error}")
    database.close()
    jobs.close()


@pytest.mark.process
def test_postgres_understands_each_statement(postgres_url: str, tmp_path: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    open_store(tmp_path, HashingEmbedder()).close()
    condition, _ = postgres_condition(SCOPE)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f'SET search_path = "{schema_of(tmp_path)}", public'.encode())
        for name, (_, query) in ALL.items():
            first, *parts = query.replace("{scope}", condition).replace("%%", "%").split("%s")
            text = first + "".join(f"${number}{part}" for number, part in enumerate(parts, 1))
            result = connection.pgconn.prepare(b"", text.encode())
            assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (name, result.error_message, text)
