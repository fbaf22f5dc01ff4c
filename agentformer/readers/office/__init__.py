"""Readers of presentations, spreadsheets and tables, and of OpenDocument files."""
