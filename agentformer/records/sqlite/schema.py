"""The database schema as a list of numbered migrations. A new migration is appended to the list; a released migration
never changes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache

from agentformer.errors import StoreDamaged, StoreError
from agentformer.records.integrity import checksums
from agentformer.types import new_id

# Parts of the indexes of migration 13.
_COMPARED = "archived_at, superseded_by, updated_at, valid_from, valid_to, expires_at"
_CURRENT = "archived_at IS NULL AND (superseded_by IS NULL OR valid_to > updated_at)"
_SEARCHED = "kind NOT IN ('document', 'page', 'unsearched')"

MIGRATIONS: tuple[str, ...] = (
    # 1: entries, their history, the change feed, embedding spaces, windows, vectors, the embedding queue.
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

    CREATE TABLE entries (
        num INTEGER PRIMARY KEY AUTOINCREMENT,  -- what indexes refer to; never used twice
        id TEXT NOT NULL UNIQUE,
        namespace TEXT NOT NULL,
        tier TEXT NOT NULL,
        kind TEXT NOT NULL,
        session_id TEXT,
        content TEXT NOT NULL,
        title TEXT NOT NULL,
        context TEXT NOT NULL,
        metadata TEXT NOT NULL,                 -- JSON object
        document_id TEXT, source_name TEXT, page INTEGER, label TEXT, span_start INTEGER, span_end INTEGER,
        parent_id TEXT,
        pair_id TEXT,
        derived_from TEXT NOT NULL,             -- JSON list of [id, type]
        occurred_at INTEGER, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,  -- microseconds, UTC
        last_accessed INTEGER,
        access_count INTEGER NOT NULL, match_count INTEGER NOT NULL, read_count INTEGER NOT NULL,
        salience REAL NOT NULL,
        archived_at INTEGER,
        superseded_by TEXT,
        version INTEGER NOT NULL
    );
    CREATE INDEX entries_by_scope ON entries (namespace, kind, tier);
    CREATE INDEX entries_by_session ON entries (namespace, session_id) WHERE session_id IS NOT NULL;
    CREATE INDEX entries_by_parent ON entries (parent_id) WHERE parent_id IS NOT NULL;
    CREATE INDEX entries_by_document ON entries (document_id) WHERE document_id IS NOT NULL;

    CREATE TABLE history (
        entry INTEGER NOT NULL REFERENCES entries (num) ON DELETE CASCADE,
        version INTEGER NOT NULL,
        state TEXT NOT NULL,                    -- the whole former entry as JSON
        PRIMARY KEY (entry, version)
    ) WITHOUT ROWID;

    -- One row per entry, moved to the end at each change: followers read what lies above the seq they know.
    CREATE TABLE changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, entry INTEGER NOT NULL UNIQUE);
    -- A random token for the newest seq of each write. Records put back from a backup go on with the same
    -- numbers and other tokens, so a follower sees that it has followed another history.
    CREATE TABLE points (seq INTEGER PRIMARY KEY, token BLOB NOT NULL);

    CREATE TABLE spaces (id INTEGER PRIMARY KEY, description TEXT NOT NULL, active INTEGER NOT NULL);

    CREATE TABLE vectors (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        space INTEGER NOT NULL REFERENCES spaces (id),
        hash BLOB NOT NULL,                     -- SHA-256 of the exact text that was embedded
        data BLOB NOT NULL,                     -- float32, little-endian, unit length
        UNIQUE (space, hash)
    );

    CREATE TABLE windows (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        space INTEGER NOT NULL REFERENCES spaces (id),
        entry INTEGER NOT NULL REFERENCES entries (num) ON DELETE CASCADE,
        span_start INTEGER NOT NULL, span_end INTEGER NOT NULL,  -- in the entry's content
        vector INTEGER NOT NULL REFERENCES vectors (id)
    );
    CREATE INDEX windows_by_entry ON windows (entry, space);
    CREATE INDEX windows_by_vector ON windows (vector);

    CREATE TABLE pending (
        entry INTEGER PRIMARY KEY REFERENCES entries (num) ON DELETE CASCADE,
        attempts INTEGER NOT NULL,
        last_error TEXT NOT NULL
    );
    """,
    # 2: users, agents and projects, records of the host application, raw messages, categories, the summary of an
    # archived entry, and leases. In the JSON of an older `history` row these fields are missing: the defaults apply.
    """
    ALTER TABLE entries ADD COLUMN agent_id TEXT;
    ALTER TABLE entries ADD COLUMN user_id TEXT;
    ALTER TABLE entries ADD COLUMN project TEXT;
    ALTER TABLE entries ADD COLUMN source_type TEXT;
    ALTER TABLE entries ADD COLUMN source_id TEXT;
    ALTER TABLE entries ADD COLUMN role TEXT NOT NULL DEFAULT '';
    ALTER TABLE entries ADD COLUMN speaker TEXT NOT NULL DEFAULT '';
    ALTER TABLE entries ADD COLUMN raw TEXT;
    ALTER TABLE entries ADD COLUMN category TEXT NOT NULL DEFAULT '';
    ALTER TABLE entries ADD COLUMN repeat_count INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE entries ADD COLUMN archived_by TEXT;
    CREATE INDEX entries_by_time ON entries (namespace, coalesce(occurred_at, created_at), id);
    CREATE INDEX entries_by_user ON entries (namespace, user_id) WHERE user_id IS NOT NULL;
    CREATE INDEX entries_by_reference ON entries (namespace, source_type, source_id) WHERE source_id IS NOT NULL;
    CREATE INDEX entries_by_summary ON entries (archived_by) WHERE archived_by IS NOT NULL;
    CREATE INDEX entries_restored ON entries (namespace) WHERE kind = 'summary' AND archived_at IS NOT NULL;
    -- The beginning finds nearly all that is equal; chunks and messages, the bulk of a store, are never asked for.
    CREATE INDEX entries_by_beginning ON entries (namespace, substr(content, 1, 100))
        WHERE kind NOT IN ('chunk', 'document', 'message', 'page');

    CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        ends_at INTEGER NOT NULL,               -- microseconds, UTC
        micros INTEGER NOT NULL                 -- how long it was taken for
    ) WITHOUT ROWID;
    """,
    # 3: a move to another embedding space: the building space, and the entries that it still lacks.
    """
    ALTER TABLE spaces ADD COLUMN building INTEGER NOT NULL DEFAULT 0;
    CREATE UNIQUE INDEX one_active_space ON spaces (active) WHERE active = 1;
    CREATE UNIQUE INDEX one_building_space ON spaces (building) WHERE building = 1;
    -- Entries whose windows in the building space are missing or of a former text. Every writer adds to it.
    CREATE TABLE moving (
        entry INTEGER PRIMARY KEY REFERENCES entries (num) ON DELETE CASCADE,
        attempts INTEGER NOT NULL,
        last_error TEXT NOT NULL
    );
    -- What a model does not take, whatever the server's state, is tried again only when somebody asks for it.
    ALTER TABLE pending ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;
    """,
    # 4: indexes for the look-ups of every upload, on the metadata keys in `scopes.INDEXED`.
    """
    CREATE INDEX entries_by_sha256 ON entries (namespace, json_extract(metadata, '$.sha256'))
        WHERE json_extract(metadata, '$.sha256') IS NOT NULL;
    CREATE INDEX entries_by_name ON entries (namespace, json_extract(metadata, '$.name'))
        WHERE json_extract(metadata, '$.name') IS NOT NULL;
    CREATE INDEX pending_by_refusal ON pending (refused);
    """,
    # 5: indexes that return a page of a scope, or the newest entries of a scope, without sorting; `scopes.where` relies
    # on them.
    """
    DROP INDEX entries_by_scope;
    DROP INDEX entries_by_session;
    DROP INDEX entries_by_user;
    CREATE INDEX entries_by_id ON entries (namespace, id);
    CREATE INDEX entries_by_kind ON entries (namespace, kind, id);
    CREATE INDEX entries_by_kind_and_tier ON entries (namespace, kind, tier, id);
    CREATE INDEX entries_by_tier ON entries (namespace, tier, id);
    CREATE INDEX entries_by_tier_and_time ON entries (namespace, tier, coalesce(occurred_at, created_at), id);
    CREATE INDEX entries_by_session ON entries (namespace, session_id, id) WHERE session_id IS NOT NULL;
    CREATE INDEX entries_by_session_and_time ON entries (
        namespace, session_id, coalesce(occurred_at, created_at), id) WHERE session_id IS NOT NULL;
    CREATE INDEX entries_by_user ON entries (namespace, user_id, id) WHERE user_id IS NOT NULL;
    CREATE INDEX entries_by_user_and_time ON entries (
        namespace, user_id, coalesce(occurred_at, created_at), id) WHERE user_id IS NOT NULL;
    -- All that is neither archived nor replaced, which the first search of a scope reads.
    CREATE INDEX entries_live ON entries (namespace, tier, kind) WHERE archived_at IS NULL AND superseded_by IS NULL;
    """,
    # 6: a checksum of each row, see `integrity.checksums`; NULL in rows of a former version.
    """
    ALTER TABLE entries ADD COLUMN checksum INTEGER;  -- over `codec.CHECKED`
    ALTER TABLE history ADD COLUMN checksum INTEGER;
    ALTER TABLE vectors ADD COLUMN checksum INTEGER;
    ALTER TABLE windows ADD COLUMN checksum INTEGER;
    ALTER TABLE spaces ADD COLUMN checksum INTEGER;
    ALTER TABLE meta ADD COLUMN checksum INTEGER;
    """,
    # 7: an index of the entries that another entry supersedes, for the removal of that other entry.
    """
    CREATE INDEX entries_by_successor ON entries (superseded_by) WHERE superseded_by IS NOT NULL;
    """,
    # 8: an index for the look-up of the document that was made from a path.
    """
    CREATE INDEX entries_by_origin ON entries (namespace, json_extract(metadata, '$.origin'))
        WHERE json_extract(metadata, '$.origin') IS NOT NULL;
    """,
    # 9: documents that are not stored although their original files may exist, see `types.AbsentDocument`.
    """
    CREATE TABLE absent_documents (id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, upload TEXT NOT NULL) WITHOUT ROWID;
    """,
    # 10: values that searches need in addition to the fields of an entry, see `index.entry_properties`; a thread
    # computes them for old entries.
    """
    CREATE TABLE derived (
        entry INTEGER PRIMARY KEY REFERENCES entries (num) ON DELETE CASCADE,
        version INTEGER NOT NULL,               -- of the analysis
        source INTEGER,                         -- checksum of the entry that was analyzed
        title TEXT NOT NULL, language TEXT NOT NULL,
        days TEXT NOT NULL,                     -- ordinals of the first and last day of each period
        facts TEXT NOT NULL, message TEXT NOT NULL,  -- JSON, or empty
        checksum INTEGER NOT NULL
    );
    """,
    # 11: entries that a search may return, of a namespace or of one user: the first search of a scope reads them from
    # the index alone. For this, the index also has the columns that are always NULL in it. The second one repeats
    # `scopes.SEARCHED`, so that SQLite chooses it for no other statement.
    """
    DROP INDEX entries_live;
    CREATE INDEX entries_live ON entries (namespace, tier, kind, archived_at, superseded_by)
        WHERE archived_at IS NULL AND superseded_by IS NULL;
    CREATE INDEX entries_searched_by_user ON entries (namespace, user_id, tier, kind, archived_at, superseded_by)
        WHERE user_id IS NOT NULL AND archived_at IS NULL AND superseded_by IS NULL
            AND kind NOT IN ('document', 'page', 'unsearched');
    """,
    # 12: the same for entries of nobody, of a project and of an agent.
    """
    DROP INDEX entries_searched_by_user;
    CREATE INDEX entries_searched_by_user ON entries (
            namespace, user_id, project, tier, kind, archived_at, superseded_by)
        WHERE archived_at IS NULL AND superseded_by IS NULL AND kind NOT IN ('document', 'page', 'unsearched');
    CREATE INDEX entries_searched_by_project ON entries (namespace, project, tier, kind, archived_at, superseded_by)
        WHERE project IS NOT NULL AND archived_at IS NULL AND superseded_by IS NULL
            AND kind NOT IN ('document', 'page', 'unsearched');
    CREATE INDEX entries_searched_by_agent ON entries (namespace, agent_id, tier, kind, archived_at, superseded_by)
        WHERE agent_id IS NOT NULL AND archived_at IS NULL AND superseded_by IS NULL
            AND kind NOT IN ('document', 'page', 'unsearched');
    """,
    # 13: validity and expiry, and indexes of their times for `scopes.next_change`. The indexes of searched entries get
    # the columns that a scope compares. They also have the entries that were superseded in advance.
    f"""
    ALTER TABLE entries ADD COLUMN valid_from INTEGER;
    ALTER TABLE entries ADD COLUMN valid_to INTEGER;
    ALTER TABLE entries ADD COLUMN expires_at INTEGER;
    CREATE INDEX entries_by_start ON entries (namespace, valid_from) WHERE valid_from IS NOT NULL;
    CREATE INDEX entries_by_end ON entries (namespace, valid_to) WHERE valid_to IS NOT NULL;
    CREATE INDEX entries_by_expiry ON entries (namespace, expires_at) WHERE expires_at IS NOT NULL;
    DROP INDEX entries_live;
    DROP INDEX entries_searched_by_user;
    DROP INDEX entries_searched_by_project;
    DROP INDEX entries_searched_by_agent;
    CREATE INDEX entries_live ON entries (namespace, tier, kind, {_COMPARED}) WHERE {_CURRENT};
    CREATE INDEX entries_searched_by_user ON entries (namespace, user_id, project, tier, kind, {_COMPARED})
        WHERE {_CURRENT} AND {_SEARCHED};
    CREATE INDEX entries_searched_by_project ON entries (namespace, project, tier, kind, {_COMPARED})
        WHERE project IS NOT NULL AND {_CURRENT} AND {_SEARCHED};
    CREATE INDEX entries_searched_by_agent ON entries (namespace, agent_id, tier, kind, {_COMPARED})
        WHERE agent_id IS NOT NULL AND {_CURRENT} AND {_SEARCHED};
    """,
    # 14: the events that watchers read, see `records.events`.
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT NOT NULL, type TEXT NOT NULL,
        entry TEXT NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL, tier TEXT NOT NULL, version INTEGER NOT NULL,
        at INTEGER NOT NULL                     -- microseconds, UTC
    );
    """,
    # 15: who did what, see `records.trail`.
    """
    CREATE TABLE trail (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,                    -- microseconds, UTC
        action TEXT NOT NULL, subject TEXT NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL,
        version INTEGER NOT NULL, key TEXT NOT NULL, person TEXT NOT NULL, via TEXT NOT NULL, client TEXT NOT NULL,
        request TEXT NOT NULL
    );
    CREATE INDEX trail_by_subject ON trail (subject);
    """,
    # 16: the first row of a time, and the rows that are too old.
    """
    CREATE INDEX trail_by_time ON trail (at);
    """,
)
_HIGHEST = 1_000  # a higher number is damaged
_METADATA_CHECKSUMS = 6  # from this version on, all rows of `meta` and `spaces` have a checksum

REQUIRED_TABLES = ("meta", "entries")  # every store has them


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the schema of the database to the newest version. Each migration is one transaction. For a new database,
    one transaction creates the newest schema. Several processes may migrate at the same time. Raises `StoreError` if
    the schema is newer than this software, or if the schema is older and the database cannot be written."""
    while (version := stored_version(connection)) < len(MIGRATIONS):
        try:
            _migrate_step(connection, version)
        except sqlite3.OperationalError as error:
            if not version or "readonly" not in str(error):
                raise
            raise StoreError(
                f"an older version of agentformer wrote this store (schema {version}; this version needs schema "
                f"{len(MIGRATIONS)}), and this process cannot write to the store; open the store once with write access"
            ) from error
    _check_newer(version)


def check_version(connection: sqlite3.Connection) -> None:
    """Check at the start of a write transaction that no other process has migrated the schema since this process opened
    the database. Raises `StoreError` if the schema is newer, and `StoreDamaged` if its number is too low."""
    if (version := stored_version(connection)) != len(MIGRATIONS):
        _check_newer(version)
        raise StoreDamaged(f"the schema number of the database has changed to {version} while it was open")


def _check_newer(version: int) -> None:
    if version > len(MIGRATIONS):
        raise StoreError(
            f"a newer version of agentformer wrote this store (schema {version}; this version knows only schema "
            f"{len(MIGRATIONS)}); upgrade agentformer"
        )


def real_version(connection: sqlite3.Connection) -> int:
    """Return the number of the newest schema whose tables, columns and indexes the database has, or 0. It is greater
    than the stored number if this number is damaged."""
    found = _structure(connection)
    return max((number for number, wanted in enumerate(_structures(), 1) if wanted <= found), default=0)


def _structure(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return pairs of a table and a column, and pairs of an index and its statement."""
    query = "SELECT m.name, p.name FROM sqlite_master AS m, pragma_table_info(m.name) AS p WHERE m.type = 'table'"
    indexes = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    return {(str(name), str(part)) for sql in (query, indexes) for name, part in connection.execute(sql)}


@cache
def _structures() -> tuple[set[tuple[str, str]], ...]:
    """Return the structure of each version of the schema."""
    structures = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for number in range(len(MIGRATIONS)):
            _apply(connection, number)
            structures.append(_structure(connection))
    return tuple(structures)


def _migrate_step(connection: sqlite3.Connection, version: int) -> None:
    """Migrate the schema from `version` to the next version, or a new database to the newest version. Do nothing if
    another process has already done this migration."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if stored_version(connection) == version:
            if (tables := real_version(connection)) > version:
                raise StoreDamaged(f"the database has the schema number {version}, but the tables of schema {tables}")
            if version:
                _apply(connection, version)
            else:
                _create(connection)
            connection.execute(f"PRAGMA user_version = {version + 1 if version else len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk, the commit has already ended the transaction
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection) -> None:
    """Create the newest schema in an empty database."""
    for statement in _newest_schema():
        connection.execute(statement)
    store_id = new_id()
    connection.execute(
        "INSERT INTO meta VALUES ('store_id', ?, ?)", (store_id, checksums.of_text(store_id, "store_id"))
    )


@cache
def _newest_schema() -> tuple[str, ...]:
    """Return the statements that create the tables and indexes of the newest schema. Executing them takes a third of
    the time of all migrations, because SQLite parses the whole schema again at each `ALTER TABLE`."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for number in range(len(MIGRATIONS)):
            _apply(connection, number)
        tables_first = (
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%' ORDER BY type DESC"
        )
        return tuple(sql for (sql,) in connection.execute(tables_first))


def _apply(connection: sqlite3.Connection, version: int) -> None:
    for statement in _statements(MIGRATIONS[version]):
        connection.execute(statement)
    if version + 1 == _METADATA_CHECKSUMS:
        for table, key, column in (("meta", "key", "value"), ("spaces", "id", "description")):
            for name, text in connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall():
                checksum = checksums.of_text(text, name)
                connection.execute(f"UPDATE {table} SET checksum = ? WHERE {key} = ?", [checksum, name])


def stored_version(connection: sqlite3.Connection) -> int:
    """Return the number of the schema. Raises `StoreDamaged` if no version of this package has such a number."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not 0 <= version <= _HIGHEST:
        raise StoreDamaged(f"the database has the damaged schema number {version}; {checksums.ADVICE}")
    return version


def _statements(script: str) -> list[str]:
    """Split an SQL script into statements. `executescript` cannot be used, because it would commit the open
    transaction."""
    statements, current = [], ""
    for line in script.splitlines():
        current += line + "\n"
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
