"""Summaries of entries. Either a language model writes a summary and checks compare it with the entries, or the summary
consists of sentences of the entries."""
