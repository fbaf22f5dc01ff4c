"""Summaries of entries. A model writes the summary and checks verify it, or the summary consists of sentences of the
entries."""
