"""Opening a connection to a PostgreSQL server: its rows, its texts, and its errors, which contain no credentials."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from agentformer.errors import InvalidInput, MissingExtra, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly

if TYPE_CHECKING:
    import psycopg

# Defaults for parameters that the address does not contain. If the network is dead, a connection ends after 30 seconds.
_PARAMETERS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_LONGEST_NAME = 63  # bytes of a name that PostgreSQL keeps
ESCAPE = "\uf8f0"  # a character of the private use area; if a text contains it, it is escaped, too
_ADDRESS = "must be the address of a PostgreSQL database, such as postgresql://user:password@host:5432/name"


class ServerUnreachable(StoreBusy):
    """Raised if the server cannot be reached, or has no free connection. Nothing was changed."""


class NoFreeConnection(ServerUnreachable):
    """Raised if the server accepts no further connection."""


class TransactionLost(StoreError):
    """Raised if the connection was lost and the server has undone the transaction, which can be repeated."""


class Row(tuple[Any, ...]):
    """A row whose values can be read by position and by column name, like `sqlite3.Row`."""

    names: tuple[str, ...] = ()

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        return [*self.names]


def _row_factory(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    return row_type(tuple(column.name for column in cursor.description or ()))


@lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> type[Row]:
    """Return the type of rows with these columns."""
    return type("Row", (Row,), {"names": names})


def open_connection(url: str) -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode. Raises `InvalidInput` if the address is invalid, `MissingExtra`
    if the driver is not installed, and `StoreError` if the server cannot be used. No message contains the
    address."""
    module = import_psycopg()
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput("postgres_url", _ADDRESS)
    try:
        given = module.conninfo.conninfo_to_dict(url)
        if any("@" in host[1:] for host in str(given.get("host") or "").split(",")):  # a part of the password
            raise InvalidInput("postgres_url", f"{_ADDRESS}; write an @ in the password as %40")
        # The name shows in `pg_stat_activity` which process of which machine holds a connection.
        named = {"application_name": f"agentformer {os.getpid()} {platform.node()}"[:_LONGEST_NAME]}
        options = {"autocommit": True, "row_factory": _row_factory, "prepare_threshold": None}
        raw = module.connect(**{**_PARAMETERS, **named, **given}, **options)
    except module.ProgrammingError:
        raise InvalidInput("postgres_url", _ADDRESS) from None
    except module.Error as error:
        raise store_error(error) from None
    return cast("psycopg.Connection[Any]", raw)


def import_psycopg() -> Any:
    """Return the module psycopg. Raises `MissingExtra` if it is not installed."""
    try:
        import pgvector  # noqa: F401
        import psycopg
    except ImportError as error:
        raise MissingExtra("postgres", "the backend postgres", error) from error
    return psycopg


@contextmanager
def translated_errors() -> Iterator[None]:
    """Convert an error of psycopg to a `StoreError`."""
    psycopg = import_psycopg()
    try:
        yield
    except psycopg.Error as error:
        raise store_error(error) from error


def store_error(error: Any) -> StoreError:
    """Return a `StoreError` with advice for an error of psycopg. The server never returns a password."""
    state = error.sqlstate or ""
    text = " ".join(str(error).split())[:300]
    if state in ("25006", "42501") or "read-only" in text:
        return StoreReadOnly(
            f"the PostgreSQL store cannot be written: {text}; connect to the primary server or grant rights"
        )
    if state.startswith("53") and state != "53300":
        return StoreFull(f"the PostgreSQL server has no room: {text}; free disk space or memory on the server")
    if state == "53300" or "too many" in text or "remaining connection slots" in text:
        return NoFreeConnection(
            f"the PostgreSQL server has no free connection: {text}; raise max_connections, lower "
            "AGENTFORMER_POSTGRES_CONNECTIONS of the processes, or use a pooler"
        )
    if state == "57014":
        return StoreBusy(f"the PostgreSQL server ended a statement: {text}; raise statement_timeout of the role")
    if state.startswith("28") or "authentication failed" in text or "no password supplied" in text:
        return StoreError(f"the PostgreSQL server refused the login: {text}; check AGENTFORMER_POSTGRES_URL")
    if state.startswith("3D") or ("database " in text and "does not exist" in text):
        return StoreError(f"the PostgreSQL server has no such database: {text}; check AGENTFORMER_POSTGRES_URL")
    if state.startswith("XX"):
        return StoreDamaged(f"the PostgreSQL server reports damage: {text}; restore a backup of the database")
    if not state or state.startswith(("08", "57")):
        return ServerUnreachable(f"the PostgreSQL server cannot be reached: {text}; check that it runs, and try again")
    return StoreError(f"the PostgreSQL server refused a statement: {text}")


def escape(text: str) -> str:
    """Return the text in the form in which PostgreSQL stores it, without NUL. In a stored text, NUL is replaced by two
    characters."""
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")


def unescape(text: str) -> str:
    """Return the original of a text that `escape` returned."""
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)


def register_text(raw: Any) -> None:
    """Make the connection store and return texts with NUL; see `escape`."""
    from psycopg.adapt import Loader
    from psycopg.pq import Format
    from psycopg.types.string import StrDumperUnknown

    class TextDumper(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(escape(obj))

    class TextLoader(Loader):
        def load(self, data: Any) -> str:
            return unescape(str(data, "utf-8"))

    raw.adapters.register_dumper(str, TextDumper)

    class BinaryTextLoader(TextLoader):
        format = Format.BINARY

    raw.adapters.register_loader("text", TextLoader)
    raw.adapters.register_loader("text", BinaryTextLoader)
