"""Search indexes of a store: a word index and a vector index. Both are updated with the changes of the records, and
both can be rebuilt from the records at any time."""
