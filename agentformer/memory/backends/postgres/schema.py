"""The schema of the tables in PostgreSQL as a list of numbered migrations. A new migration is appended to the list; a
released migration never changes. The columns of the records are those of `records.schema`.

Several nodes may start at the same time, because all migrations run in one transaction that holds an advisory lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentformer.errors import StoreError
from agentformer.records.integrity import checksums
from agentformer.types import new_id

if TYPE_CHECKING:
    import psycopg

OLDEST_PGVECTOR = (0, 8)  # the first version with iterative scans

# Functions that the statements of `records/` call. They have the same names as in SQLite.
_FUNCTIONS = r"""
CREATE FUNCTION json_extract(document text, path text) RETURNS text IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    AS $$ SELECT jsonb_path_query_first(replace(document, '\u0000', '\uf8f00')::jsonb, path::jsonpath) #>> '{}' $$;
CREATE FUNCTION json_items(document text, OUT key text, OUT value text, OUT type text, OUT number numeric)
    RETURNS SETOF record IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
    SELECT k, v #>> '{}',
        CASE jsonb_typeof(v) WHEN 'string' THEN 'text' WHEN 'boolean' THEN v::text ELSE jsonb_typeof(v) END,
        CASE WHEN jsonb_typeof(v) = 'number' THEN (v #>> '{}')::numeric END
    FROM (
        SELECT k, v FROM jsonb_each(CASE WHEN left(ltrim(document), 1) = '{'
            THEN replace(document, '\u0000', '\uf8f00')::jsonb ELSE '{}' END) AS o (k, v)
        UNION ALL
        SELECT (n - 1)::text, v FROM jsonb_array_elements(CASE WHEN left(ltrim(document), 1) = '['
            THEN replace(document, '\u0000', '\uf8f00')::jsonb ELSE '[]' END) WITH ORDINALITY AS a (v, n)
    ) AS items $$;
CREATE FUNCTION metadata_equals(metadata text, name text, value text) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
    SELECT coalesce(replace(metadata, '\u0000', '\uf8f00')::jsonb -> name
        = replace(value, '\u0000', '\uf8f00')::jsonb, false) $$;
CREATE FUNCTION decayed(salience float8, rate float8, micros bigint) RETURNS float8
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
    SELECT CASE WHEN micros <= 0 THEN salience WHEN rate <= 0 THEN 0.0
        WHEN ln(rate) * micros / 86400000000.0 < -700 THEN 0.0
        ELSE salience * power(rate, micros / 86400000000.0::float8) END $$;
CREATE FUNCTION hex(data bytea) RETURNS text IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    AS $$ SELECT upper(encode(data, 'hex')) $$;
CREATE FUNCTION hex(data text) RETURNS text IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    AS $$ SELECT upper(encode(convert_to(data, 'UTF8'), 'hex')) $$;
CREATE FUNCTION randomblob(length integer) RETURNS bytea VOLATILE LANGUAGE sql
    AS $$ SELECT substring(uuid_send(gen_random_uuid()) from 1 for length) $$;
"""

# The tables of the nodes, see `memory.nodes`. All times are those of the server's clock.
_NODES = """
CREATE FUNCTION server_micros() RETURNS bigint VOLATILE LANGUAGE sql
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
CREATE TABLE nodes (
    id text COLLATE "C" PRIMARY KEY, name text NOT NULL, role text NOT NULL, started_at bigint NOT NULL,
    seen_at bigint NOT NULL, ends_at bigint NOT NULL, embedded bigint NOT NULL DEFAULT 0
);
ALTER TABLE pending ADD COLUMN queued_at bigint NOT NULL DEFAULT server_micros();
ALTER TABLE pending ADD COLUMN claim text COLLATE "C";  -- the holder of the claim: the node, and a number of the node
ALTER TABLE pending ADD COLUMN claim_ends bigint;
CREATE INDEX pending_by_claim ON pending (claim) WHERE claim IS NOT NULL;
CREATE INDEX leases_by_holder ON leases (holder);
CREATE FUNCTION notify_nodes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_notify('agentformer', TG_TABLE_SCHEMA || '/' || TG_TABLE_NAME); RETURN NULL; END $$;
CREATE TRIGGER notify_nodes AFTER INSERT ON pending FOR EACH STATEMENT EXECUTE FUNCTION notify_nodes();
CREATE TRIGGER notify_nodes AFTER INSERT ON changes FOR EACH STATEMENT EXECUTE FUNCTION notify_nodes();
"""

# Files and upload jobs, see `types.shared` and `jobs.store`.
_FILES = """
CREATE TABLE files (
    name text COLLATE "C" NOT NULL, part bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (name, part)
);
ALTER TABLE files ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE jobs (
    id text COLLATE "C" PRIMARY KEY, namespace text COLLATE "C" NOT NULL, names text NOT NULL, metadata text NOT NULL,
    state text NOT NULL, created_at bigint NOT NULL, updated_at bigint NOT NULL, documents text NOT NULL,
    windows_done bigint NOT NULL, windows bigint NOT NULL, cancelling smallint NOT NULL, attempts bigint NOT NULL,
    reason text NOT NULL, on_conflict text NOT NULL DEFAULT 'replace', key_id text NOT NULL DEFAULT ''
);
"""

# The token of the last write transaction of each connection, see `connection`.
_COMMITS = """
CREATE TABLE commits (connection text COLLATE "C" PRIMARY KEY, token text NOT NULL, at bigint NOT NULL)
    WITH (fillfactor = 50);
"""

# Properties that searches derive from an entry, see `index.entry_properties`.
_DERIVED = """
CREATE TABLE derived (
    entry bigint PRIMARY KEY REFERENCES entries ON DELETE CASCADE, version bigint NOT NULL, source bigint,
    title text NOT NULL, language text NOT NULL, days text NOT NULL, facts text NOT NULL, message text NOT NULL,
    checksum bigint NOT NULL
);
"""

# The numbers of entries per word are counted for the whole store.
_COUNTS = """
ALTER TABLE word_counts RENAME TO former_counts;
ALTER TABLE word_totals RENAME TO former_totals;
CREATE TABLE word_counts (term bigint CONSTRAINT word_counts_of_all PRIMARY KEY, entries bigint NOT NULL)
    WITH (fillfactor = 70);
CREATE TABLE word_totals (
    language text COLLATE "C" CONSTRAINT word_totals_of_all PRIMARY KEY, entries bigint NOT NULL,
    lengths bigint[] NOT NULL
);
INSERT INTO word_counts SELECT term, sum(entries) FROM former_counts GROUP BY 1 HAVING sum(entries) <> 0;
INSERT INTO word_totals SELECT language, sum(entries),
    ARRAY[sum(lengths[1]), sum(lengths[2]), sum(lengths[3])]::bigint[] FROM former_totals GROUP BY 1;
DROP TABLE former_counts, former_totals;
"""

# All keys of rows that belong to an entry begin with the namespace. `entry_places` contains the namespace of each
# entry, for calls with only an id or a number. If several namespaces have the same text, each has a copy of its vector,
# all with the same id. A vector that no namespace uses yet has `NO_NAMESPACE`, which no entry can have: it contains
# `dialect.ESCAPE` at a position where `dialect.escape` never writes it.
NO_NAMESPACE = r"U&'\F8F0none'"
_CHILDREN = ("history", "windows", "pending", "moving", "derived")  # tables with rows that belong to an entry
_COLUMNS = {
    "history": "entry, version, state, checksum",
    "windows": "id, space, entry, span_start, span_end, vector, checksum",
    "pending": "entry, attempts, last_error, refused, queued_at, claim, claim_ends",
    "moving": "entry, attempts, last_error",
    "derived": "entry, version, source, title, language, days, facts, message, checksum",
}
_KEYS = {"history": "entry, version", "windows": "id", "pending": "entry", "moving": "entry", "derived": "entry"}
_VECTOR = "id, space, hash, data, checksum, half"
_PLACES = """
CREATE TABLE entry_places (
    num bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE,
    namespace text COLLATE "C" NOT NULL
);
INSERT INTO entry_places SELECT num, id, namespace FROM entries;
SELECT setval(pg_get_serial_sequence('entry_places', 'num'), last, true)
    FROM pg_sequence_last_value(pg_get_serial_sequence('entries', 'num')::regclass) AS last WHERE last IS NOT NULL;
SELECT setval(pg_get_serial_sequence('entry_places', 'num'), most, true)
    FROM (SELECT max(num) AS most, (SELECT last_value FROM entry_places_num_seq) AS last FROM entries) AS e
    WHERE most > last;
"""


_FORMER_KEYS_GONE = "".join(
    f"ALTER TABLE {table} DROP CONSTRAINT {table}_entry_fkey, DROP CONSTRAINT {table}_pkey, "
    'ADD COLUMN entry_namespace text COLLATE "C";\n'
    f"UPDATE {table} AS c SET entry_namespace = p.namespace FROM entry_places AS p WHERE p.num = c.entry;\n"
    for table in _CHILDREN
)
_KEYS_BY_NAMESPACE = "".join(
    f"ALTER TABLE {table} ALTER COLUMN entry_namespace SET NOT NULL, "
    f"ADD PRIMARY KEY (entry_namespace, {_KEYS[table]}), "
    "ADD FOREIGN KEY (entry_namespace, entry) REFERENCES entries (namespace, num) ON DELETE CASCADE;\n"
    for table in _CHILDREN
)
_INDEXES_BY_NUMBER = "".join(
    f"CREATE INDEX {table}_by_number ON {table} ({column});\n"
    for table, column in (
        *(("entries", "num"), ("history", "entry"), ("windows", "id"), ("pending", "entry"), ("moving", "entry")),
        *(("derived", "entry"), ("vectors", "id"), ("word_entries", "num")),
    )
)
_COPIES = "".join(
    f"    INSERT INTO {table} (entry_namespace, {_COLUMNS[table]}) SELECT target, {_COLUMNS[table]} FROM {table}\n"
    "        WHERE entry_namespace = former AND entry = moved;\n"
    for table in _CHILDREN
)
# Moves an entry and all that belongs to it to another namespace.
_MOVE_ENTRY = f"""CREATE FUNCTION move_entry(moved_id text, target text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE former text; moved bigint; used bigint[];
BEGIN
    SELECT num, namespace INTO moved, former FROM entry_places WHERE id = moved_id FOR UPDATE;
    IF moved IS NULL OR former = target THEN RETURN; END IF;
    INSERT INTO entries SELECT (jsonb_populate_record(e, jsonb_build_object('namespace', target))).*
        FROM entries AS e WHERE e.namespace = former AND e.num = moved;
    used := ARRAY(SELECT vector FROM windows WHERE entry_namespace = former AND entry = moved);
    INSERT INTO vectors (entry_namespace, {_VECTOR}) SELECT target, {_VECTOR} FROM vectors
        WHERE entry_namespace = former AND id = ANY(used) ON CONFLICT DO NOTHING;
{_COPIES}
    DELETE FROM entries WHERE namespace = former AND num = moved;
    DELETE FROM vectors WHERE entry_namespace = former AND id = ANY(used) AND NOT EXISTS
        (SELECT 1 FROM windows AS w WHERE w.entry_namespace = former AND w.vector = vectors.id);
    UPDATE entry_places SET namespace = target WHERE num = moved;
END $$;
"""
# Keys that begin with the namespace.
_BY_NAMESPACE = f"""
DO $$ DECLARE name text; BEGIN  -- they are created again in the background
    FOR name IN SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE i.indrelid = 'vectors'::regclass AND c.relname LIKE 'vectors\\_of\\_space\\_%'
    LOOP EXECUTE format('DROP INDEX %I', name); END LOOP; END $$;
{_PLACES}
ALTER TABLE windows DROP CONSTRAINT windows_vector_fkey;
{_FORMER_KEYS_GONE}
ALTER TABLE vectors DROP CONSTRAINT vectors_pkey, DROP CONSTRAINT vectors_space_hash_key,
    ADD COLUMN entry_namespace text COLLATE "C" NOT NULL DEFAULT {NO_NAMESPACE};
UPDATE vectors SET entry_namespace = w.first
    FROM (SELECT vector, min(entry_namespace) AS first FROM windows GROUP BY vector) AS w WHERE w.vector = vectors.id;
INSERT INTO vectors (entry_namespace, {_VECTOR})
    SELECT w.entry_namespace, v.id, v.space, v.hash, v.data, v.checksum, v.half
    FROM (SELECT DISTINCT entry_namespace, vector FROM windows) AS w
    JOIN vectors AS v ON v.id = w.vector AND v.entry_namespace <> w.entry_namespace;
ALTER TABLE vectors ADD PRIMARY KEY (entry_namespace, id), ADD UNIQUE (entry_namespace, space, hash);
CREATE INDEX vectors_by_hash ON vectors (space, hash);
ALTER TABLE entries DROP CONSTRAINT entries_pkey, DROP CONSTRAINT entries_id_key, ALTER COLUMN num DROP IDENTITY,
    ADD PRIMARY KEY (namespace, num), ADD FOREIGN KEY (num) REFERENCES entry_places ON DELETE CASCADE;
DROP INDEX entries_by_id;
ALTER TABLE entries ADD UNIQUE (namespace, id);
CREATE INDEX entries_by_id ON entries (id);
{_KEYS_BY_NAMESPACE}
ALTER TABLE windows ADD FOREIGN KEY (entry_namespace, vector) REFERENCES vectors (entry_namespace, id);
ALTER TABLE word_entries DROP CONSTRAINT word_entries_pkey, ADD PRIMARY KEY (namespace, num);
{_INDEXES_BY_NUMBER}
{_MOVE_ENTRY}"""


MIGRATIONS: tuple[str, ...] = (
    # 1: the records, as in `records.schema`; texts are compared and sorted by their bytes.
    _FUNCTIONS
    + """
CREATE TABLE meta (key text COLLATE "C" PRIMARY KEY, value text NOT NULL, checksum bigint);
CREATE TABLE entries (
    num bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    namespace text COLLATE "C" NOT NULL,
    tier text COLLATE "C" NOT NULL, kind text COLLATE "C" NOT NULL, session_id text COLLATE "C",
    content text COLLATE "C" NOT NULL, title text NOT NULL, context text NOT NULL, metadata text NOT NULL,
    document_id text COLLATE "C", source_name text, page bigint, label text, span_start bigint, span_end bigint,
    parent_id text COLLATE "C", pair_id text, derived_from text NOT NULL,
    occurred_at bigint, created_at bigint NOT NULL, updated_at bigint NOT NULL, last_accessed bigint,
    access_count bigint NOT NULL, match_count bigint NOT NULL, read_count bigint NOT NULL,
    salience double precision NOT NULL, archived_at bigint, superseded_by text COLLATE "C", version bigint NOT NULL,
    agent_id text, user_id text COLLATE "C", project text, source_type text COLLATE "C", source_id text COLLATE "C",
    role text NOT NULL DEFAULT '', speaker text NOT NULL DEFAULT '', raw text,
    category text COLLATE "C" NOT NULL DEFAULT '', repeat_count bigint NOT NULL DEFAULT 0,
    archived_by text COLLATE "C", checksum bigint
);
CREATE INDEX entries_by_id ON entries (namespace, id);
CREATE INDEX entries_by_time ON entries (namespace, (coalesce(occurred_at, created_at)), id);
CREATE INDEX entries_by_kind ON entries (namespace, kind, tier, id);
CREATE INDEX entries_by_tier ON entries (namespace, tier, (coalesce(occurred_at, created_at)), id);
CREATE INDEX entries_by_session ON entries (namespace, session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX entries_by_session_and_time ON entries (namespace, session_id, (coalesce(occurred_at, created_at)), id)
    WHERE session_id IS NOT NULL;
CREATE INDEX entries_by_user ON entries (namespace, user_id, id) WHERE user_id IS NOT NULL;
CREATE INDEX entries_by_parent ON entries (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX entries_by_document ON entries (document_id) WHERE document_id IS NOT NULL;
CREATE INDEX entries_by_reference ON entries (namespace, source_type, source_id) WHERE source_id IS NOT NULL;
CREATE INDEX entries_by_summary ON entries (archived_by) WHERE archived_by IS NOT NULL;
CREATE INDEX entries_restored ON entries (namespace) WHERE kind = 'summary' AND archived_at IS NOT NULL;
CREATE INDEX entries_by_beginning ON entries (namespace, substr(content, 1, 100))
    WHERE kind NOT IN ('chunk', 'document', 'message', 'page');
CREATE INDEX entries_by_successor ON entries (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX entries_by_sha256 ON entries (namespace, json_extract(metadata, '$.sha256'))
    WHERE json_extract(metadata, '$.sha256') IS NOT NULL;
CREATE INDEX entries_by_name ON entries (namespace, json_extract(metadata, '$.name'))
    WHERE json_extract(metadata, '$.name') IS NOT NULL;
CREATE INDEX entries_by_origin ON entries (namespace, json_extract(metadata, '$.origin'))
    WHERE json_extract(metadata, '$.origin') IS NOT NULL;
CREATE TABLE history (
    entry bigint NOT NULL REFERENCES entries ON DELETE CASCADE, version bigint NOT NULL, state text NOT NULL,
    checksum bigint, PRIMARY KEY (entry, version)
);
CREATE TABLE changes (seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, entry bigint NOT NULL UNIQUE);
CREATE TABLE points (seq bigint PRIMARY KEY, token bytea NOT NULL);
CREATE TABLE spaces (
    id bigint PRIMARY KEY, description text NOT NULL, active smallint NOT NULL, building smallint NOT NULL DEFAULT 0,
    checksum bigint
);
CREATE UNIQUE INDEX one_active_space ON spaces (active) WHERE active = 1;
CREATE UNIQUE INDEX one_building_space ON spaces (building) WHERE building = 1;
CREATE TABLE vectors (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, space bigint NOT NULL REFERENCES spaces,
    hash bytea NOT NULL, data bytea NOT NULL, checksum bigint,
    half halfvec NOT NULL,  -- the same vector in half precision, for the index of the space
    UNIQUE (space, hash)
);
ALTER TABLE vectors ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE windows (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, space bigint NOT NULL REFERENCES spaces,
    entry bigint NOT NULL REFERENCES entries ON DELETE CASCADE, span_start bigint NOT NULL, span_end bigint NOT NULL,
    vector bigint NOT NULL REFERENCES vectors, checksum bigint
);
CREATE INDEX windows_by_entry ON windows (entry, space);
CREATE INDEX windows_by_vector ON windows (vector);
CREATE TABLE pending (
    entry bigint PRIMARY KEY REFERENCES entries ON DELETE CASCADE, attempts bigint NOT NULL, last_error text NOT NULL,
    refused smallint NOT NULL DEFAULT 0
);
CREATE INDEX pending_by_refusal ON pending (refused);
CREATE TABLE moving (
    entry bigint PRIMARY KEY REFERENCES entries ON DELETE CASCADE, attempts bigint NOT NULL, last_error text NOT NULL
);
CREATE TABLE leases (
    name text COLLATE "C" PRIMARY KEY, holder text NOT NULL, ends_at bigint NOT NULL, micros bigint NOT NULL
);
CREATE TABLE absent_documents (id text COLLATE "C" PRIMARY KEY, sha256 text NOT NULL, upload text NOT NULL);

-- Words: the terms of each entry, and for each term its entries. A term is the hash of its field and text.
CREATE TABLE word_entries (
    num bigint PRIMARY KEY, namespace text COLLATE "C" NOT NULL, language text NOT NULL, lengths integer[] NOT NULL,
    terms bigint[] NOT NULL, digest bytea NOT NULL
);
CREATE TABLE words (
    namespace text COLLATE "C" NOT NULL, term bigint NOT NULL, num bigint NOT NULL,
    times integer NOT NULL, length integer NOT NULL,  -- of the field
    PRIMARY KEY (namespace, term, num) INCLUDE (times, length)
);
CREATE TABLE word_counts (
    namespace text COLLATE "C" NOT NULL, term bigint NOT NULL, entries bigint NOT NULL, PRIMARY KEY (namespace, term)
) WITH (fillfactor = 70);
CREATE TABLE word_totals (
    namespace text COLLATE "C" NOT NULL, language text NOT NULL, entries bigint NOT NULL, lengths bigint[] NOT NULL,
    PRIMARY KEY (namespace, language)
);
""",
    # 2: nodes
    _NODES,
    # 3: files and upload jobs
    _FILES,
    # 4: transactions in doubt
    _COMMITS,
    # 5: derived rows
    _DERIVED,
    # 6: numbers of words
    _COUNTS,
    # 7: keys that begin with the namespace
    _BY_NAMESPACE,
)


def migrate(connection: psycopg.Connection[Any], schema: str, lock: int) -> None:
    """Create the schema, or migrate it to the newest version. `lock` is the number of the advisory lock that writers of
    this store hold. Raises `StoreError` if the schema is newer than this software, or if pgvector is missing or too
    old."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock])
        version = _version(connection, schema)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"a newer version of agentformer wrote this store (schema {version}; this version knows only schema "
                f"{len(MIGRATIONS)}); upgrade agentformer"
            )
        if version == len(MIGRATIONS):
            return
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        _check_pgvector(connection)
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'.encode())
        connection.execute(f'SET LOCAL search_path = "{schema}", public'.encode())
        for script in MIGRATIONS[version:]:
            connection.execute(script.encode())
        if not version:
            store_id = new_id()
            checksum = checksums.of_text(store_id, "store_id")
            connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
            connection.execute("INSERT INTO schema_version VALUES (0)")
            connection.execute("INSERT INTO meta VALUES ('store_id', %s, %s)", [store_id, checksum])
        connection.execute("UPDATE schema_version SET version = %s", [len(MIGRATIONS)])


def _version(connection: psycopg.Connection[Any], schema: str) -> int:
    """Return the number of the schema, or 0 if the schema is missing."""
    found = connection.execute("SELECT to_regclass(%s)", [f'"{schema}".schema_version']).fetchone()
    if found is None or found[0] is None:
        return 0
    row = connection.execute(f'SELECT version FROM "{schema}".schema_version'.encode()).fetchone()
    return int(row[0]) if row else 0


def _check_pgvector(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    version = str(row[0]) if row else "0"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PGVECTOR:
        needed = ".".join(map(str, OLDEST_PGVECTOR))
        raise StoreError(
            f"the server has pgvector {version}, but agentformer needs {needed} or newer; "
            "install it and run ALTER EXTENSION vector UPDATE"
        )
