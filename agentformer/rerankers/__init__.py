"""Rerankers: models that score how well a passage answers a question."""
