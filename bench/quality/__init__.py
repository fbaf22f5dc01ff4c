"""Retrieval on the development sets, in one table: `python -m bench.quality`."""
