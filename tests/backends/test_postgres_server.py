"""Texts, errors and addresses of a PostgreSQL server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentformer.errors import InvalidInput, MissingExtra, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly
from agentformer.memory.backends.postgres import schema, server
from agentformer.memory.backends.postgres.server import (
    NoFreeConnection,
    ServerUnreachable,
    open_connection,
    store_error,
)
from agentformer.memory.backends.postgres.words import stored_length, term_hash
from agentformer.servers.problems import problem_of
from agentformer.settings import Settings


@pytest.mark.parametrize("text", ["", "plain", "a\0b", "\uf8f00", "\uf8f0\0\uf8f01\0\0", "ä\uf8f0"])
def test_a_text_with_nul_is_stored_without_loss(text: str) -> None:
    stored = server.escape(text)
    assert "\0" not in stored and server.unescape(stored) == text


@pytest.mark.parametrize(
    ("state", "text", "kind", "advice"),
    [
        ("25006", "cannot execute INSERT in a read-only transaction", StoreReadOnly, "primary"),
        ("53100", "could not extend file", StoreFull, "free disk space"),
        ("53300", "too many connections", NoFreeConnection, "max_connections"),
        ("57014", "canceling statement due to statement timeout", StoreBusy, "statement_timeout"),
        ("28P01", "password authentication failed for user", StoreError, "AGENTFORMER_POSTGRES_URL"),
        ("57P01", "terminating connection", ServerUnreachable, "try again"),
        (None, "connection refused", ServerUnreachable, "try again"),
        ("XX001", "invalid page in block", StoreDamaged, "backup"),
        ("42P01", "relation does not exist", StoreError, "refused a statement"),
    ],
)
def test_an_error_of_the_server_says_what_to_do(
    state: str | None, text: str, kind: type[StoreError], advice: str
) -> None:
    class ServerError(Exception):
        sqlstate = state

    error = store_error(ServerError(text))
    assert type(error) is kind and advice in str(error) and text in str(error)
    # Over HTTP, a client is told when to try again.
    assert ("Retry-After" in problem_of(error).headers) == issubclass(kind, StoreBusy)
    assert (problem_of(error).status == 503) == issubclass(kind, (StoreBusy, StoreReadOnly))


def test_an_older_pgvector_is_refused() -> None:
    def server(version: str) -> Any:
        return SimpleNamespace(execute=lambda _: SimpleNamespace(fetchone=lambda: (version,)))

    schema._check_pgvector(server("0.8.5"))
    with pytest.raises(StoreError, match=r"has pgvector 0\.7\.4.* needs 0\.8"):
        schema._check_pgvector(server("0.7.4"))


def test_lengths_are_rounded_as_tantivy_rounds_them() -> None:
    assert [stored_length(n) for n in (0, 39, 40, 41, 42, 100, 1000)] == [0, 39, 40, 40, 42, 96, 984]
    assert term_hash("stems", "en~cat") != term_hash("parts", "en~cat")


def test_the_address_is_checked_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    settings = Settings(backend="postgres", postgres_url="postgresql://me:geheim@db:5432/x")
    assert "geheim" not in repr(settings)
    with pytest.raises(InvalidInput, match="postgres_url"):
        open_connection("db.example.org geheim")
    with pytest.raises(InvalidInput, match="postgres_schema"):
        Settings(postgres_schema='x"; DROP')
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"\[postgres\]"):
        open_connection("postgresql://db/x")
