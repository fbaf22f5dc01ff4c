"""Exports, which any memory can import (docs/ARCHIVE.md), and backups of one memory."""
