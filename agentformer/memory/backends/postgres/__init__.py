"""The backend `postgres`: records, vectors and words in one PostgreSQL database with pgvector."""
