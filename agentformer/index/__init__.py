"""Search indexes of a store: a word index and a vector index. Both are updated with the changes of the records, which
are the database of the entries. Both can be rebuilt from the records at any time."""
