"""The vector index; `index.py` is its entry point."""
