"""Ranked lists that boost hits by document, title or date."""
