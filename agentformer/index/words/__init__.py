"""The word index; `index.py` is its entry point."""
