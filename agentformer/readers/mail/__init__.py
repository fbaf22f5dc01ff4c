"""Read e-mail; the module `reader` is the entry point."""
