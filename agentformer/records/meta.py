"""Three small tables: key-value pairs that describe the store, leases, and absent documents. Each key-value pair has a
checksum.

A lease gives one process an exclusive right until an end time. All processes that have the store open respect the
lease.

An absent document is a document that is not stored, but whose original file may exist. The table lists absent
documents, so that these files can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentformer.records.codec import now, to_micros
from agentformer.records.integrity import checksums
from agentformer.types import AbsentDocument, Connection, MemoryEntry, Row, Statement, common, new_id

_SECURE_DELETE = "erasure_due"
_VALUE = common("SELECT * FROM meta WHERE key = ?")
_SET_VALUE = Statement(
    sqlite="INSERT OR REPLACE INTO meta VALUES (?, ?, ?)",
    postgres="INSERT INTO meta VALUES (%s, %s, %s) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, checksum = excluded.checksum",
)
_VALUES = common("SELECT * FROM meta WHERE key >= ? AND key < ? ORDER BY key")
_DELETE_KEY = common("DELETE FROM meta WHERE key = ?")
_DELETE_VALUE = common("DELETE FROM meta WHERE key = ? AND value = ?")
_LEASE = common("SELECT * FROM leases WHERE name = ?")
_TAKE_LEASE = Statement(
    sqlite="INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
    postgres="INSERT INTO leases VALUES (%s, %s, %s, %s) ON CONFLICT (name) "
    "DO UPDATE SET holder = excluded.holder, ends_at = excluded.ends_at, micros = excluded.micros",
)
_RELEASE_LEASE = common("DELETE FROM leases WHERE name = ? AND holder = ?")
_ABSENT = common("SELECT * FROM absent_documents ORDER BY id")
_ADD_ABSENT = Statement(
    sqlite="INSERT OR REPLACE INTO absent_documents VALUES (?, ?, ?)",
    postgres="INSERT INTO absent_documents VALUES (%s, %s, %s) "
    "ON CONFLICT (id) DO UPDATE SET sha256 = excluded.sha256, upload = excluded.upload",
)
_END_ABSENCE = common("DELETE FROM absent_documents WHERE id = ?")
_FORGET_ABSENT = common("DELETE FROM absent_documents WHERE id = ? AND sha256 = ? AND upload = ?")


def get_value(connection: Connection, key: str) -> str:
    """Return the value of a key, or "" if the key is not set. Raises `StoreDamaged` if the value is damaged."""
    row = connection.run(_VALUE, [key]).fetchone()
    return check_value(row) if row else ""


def set_value(connection: Connection, key: str, value: str) -> None:
    connection.run(_SET_VALUE, [key, value, checksums.of_text(value, key)])


def values(connection: Connection, prefix: str) -> dict[str, str]:
    """Return the values of all keys that begin with `prefix`, without this prefix, in order of key. `prefix` ends with
    a slash. Raises `StoreDamaged` if a value is damaged."""
    rows = connection.run(_VALUES, [prefix, f"{prefix[:-1]}0"])  # "0" comes after "/"
    return {row["key"].removeprefix(prefix): check_value(row) for row in rows}


def delete_value(connection: Connection, key: str) -> bool:
    """Delete a key and its value. Return False if there is no such key."""
    return connection.run(_DELETE_KEY, [key]).rowcount > 0


def check_value(row: Row) -> str:
    """Return the value in a row of the table `meta`. Raises `StoreDamaged` if the checksum does not match."""
    key, value, checksum = row["key"], row["value"], row["checksum"]
    if checksum is not None and checksums.of_text(value, key) != checksum:
        raise checksums.damage_error("the store's metadata")
    return str(value)


def request_secure_delete(connection: Connection) -> None:
    """Record a request to erase deleted text from the index files, which may still contain it. The request is a part of
    the transaction of `connection`. If this transaction also deletes the text, a crash cannot lose the request."""
    set_value(connection, _SECURE_DELETE, new_id())


def secure_delete_request(connection: Connection) -> str:
    """Return the token of the latest request to erase deleted text, or "" if no request is waiting."""
    return get_value(connection, _SECURE_DELETE)


def finish_secure_delete(connection: Connection, token: str) -> None:
    """Record that the request with this token was carried out. A later request has another token and keeps waiting."""
    connection.run(_DELETE_VALUE, [_SECURE_DELETE, token])


def take_lease(connection: Connection, name: str, holder: str, seconds: float) -> bool:
    """Take the lease `name` for `seconds`, or extend it if `holder` has it. Return False if another holder has it."""
    moment = to_micros(now()) or 0
    row = connection.run(_LEASE, [name]).fetchone()
    # if a lease has more time left than it was taken for, the clock was set back, and the lease is not valid
    if row and row["holder"] != holder and 0 < row["ends_at"] - moment <= row["micros"]:
        return False
    micros = int(seconds * 1_000_000)
    connection.run(_TAKE_LEASE, [name, holder, moment + micros, micros])
    return True


def release_lease(connection: Connection, name: str, holder: str) -> None:
    """End the lease `name` if `holder` has it. Otherwise do nothing."""
    connection.run(_RELEASE_LEASE, [name, holder])


def absent(entries: Iterable[MemoryEntry], upload: str = "") -> list[AbsentDocument]:
    """Return an `AbsentDocument` for each entry that is a document and has the SHA-256 of its original file in its
    metadata. The entries are not stored: they were removed, or the upload with the id `upload` will store them."""
    documents = ((entry.id, entry.metadata.get("sha256")) for entry in entries if entry.kind == "document")
    return [AbsentDocument(entry_id, digest, upload) for entry_id, digest in documents if isinstance(digest, str)]


def absent_documents(connection: Connection) -> list[AbsentDocument]:
    """Return the documents that are not stored although their original files may exist, in order of id."""
    return [AbsentDocument(*row) for row in connection.run(_ABSENT)]


def add_absent(connection: Connection, entries: Iterable[MemoryEntry], upload: str = "") -> None:
    """Record that the documents among `entries` are absent. `upload` is the id of an upload, or "" (see `absent`)."""
    connection.run_many(_ADD_ABSENT, absent(entries, upload))


def end_absence(connection: Connection, entries: Iterable[MemoryEntry]) -> None:
    """Record that the documents among `entries` are stored, and therefore no longer absent."""
    ids = ((entry.id,) for entry in entries if entry.kind == "document")
    connection.run_many(_END_ABSENCE, ids)


def forget_absent(connection: Connection, documents: Iterable[AbsentDocument]) -> None:
    """Delete the records of these absent documents, except records that have changed since they were read."""
    connection.run_many(_FORGET_ABSENT, documents)
