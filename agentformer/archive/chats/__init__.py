"""The import of conversations of other programs (docs/MIGRATING.md)."""
