"""The backend `postgres`: records, vectors and words in a PostgreSQL database with pgvector, for several machines. The
packages that it needs are imported when it is opened."""
