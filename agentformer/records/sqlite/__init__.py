"""The connection to SQLite, and the schema of its tables. The folder `memory.backends.postgres` has those of
PostgreSQL."""
