"""The vector index: FAISS over the stored vectors. A small index is searched exactly. A large index is trained."""
