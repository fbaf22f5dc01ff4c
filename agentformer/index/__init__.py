"""Indexes: caches that follow the records' change feed and can be rebuilt from them at any time."""
