"""Summaries of entries: written by a model and verified, or put together from the entries' own sentences."""
