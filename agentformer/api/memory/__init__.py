"""Endpoints of memories: single entries, search and maintenance, and core blocks."""
