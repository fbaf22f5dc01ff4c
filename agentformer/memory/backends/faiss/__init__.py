"""The embedded backend: SQLite records, a FAISS vector index and a tantivy word index."""
