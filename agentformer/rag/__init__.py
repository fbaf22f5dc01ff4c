"""Ingest documents and answer questions from them, with any backend."""
