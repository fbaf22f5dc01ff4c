"""Exports for any memory (docs/ARCHIVE.md), and backups of one memory."""
