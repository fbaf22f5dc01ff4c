"""The backend `faiss`: SQLite records, a FAISS vector index and a word index in one folder."""
