"""Endpoints below `/v1` with the protocol of OpenAI: files, vector stores, embeddings, models and chat completions.

A vector store is a namespace, and a file is a document. The official clients of OpenAI use these endpoints."""
