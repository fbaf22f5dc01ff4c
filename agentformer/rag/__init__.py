"""Ingestion of documents, and answers from documents, over any backend."""
