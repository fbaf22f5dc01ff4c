"""Read PDF files into pages of text."""
