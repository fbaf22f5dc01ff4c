"""Exports and backups of a memory. Any memory can import an export (docs/ARCHIVE.md). A backup is a copy that can be
opened as a memory."""
