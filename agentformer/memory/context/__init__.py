"""The context of a prompt; the module `builder` is the entry point."""
