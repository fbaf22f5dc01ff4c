"""Reads PDF files into pages of text."""
