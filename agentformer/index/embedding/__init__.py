"""Windows of entries, their vectors, and the queue of entries that still need vectors."""
