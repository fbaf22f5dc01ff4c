"""The models of sentence-transformers; the module `embedder` is the entry point."""
