"""Read PDF files; the module `reader` is the entry point."""
