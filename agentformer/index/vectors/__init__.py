"""The vector index. It uses FAISS to find the nearest vectors. In a small index, every vector is compared with the
query. A large index is trained: its vectors are grouped into lists, and a search reads only the nearest lists."""
