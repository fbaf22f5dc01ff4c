"""Embedding of entries. An entry is cut into windows, which are parts that fit the model, and each window gets a
vector. Entries that have no vectors yet wait in a queue."""
