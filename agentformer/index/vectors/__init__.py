"""The vector index: FAISS over the stored vectors, exact while it is small and trained when it is large."""
