"""Memories as Markdown files that people edit (docs/MARKDOWN.md)."""
