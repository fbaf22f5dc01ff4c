"""Searches a second of HTTP servers under the same clients."""
