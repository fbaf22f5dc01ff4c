"""The doctor of what follows from the records: vectors, windows, words and snapshots."""
