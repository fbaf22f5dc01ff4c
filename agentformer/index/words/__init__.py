"""The word index. It uses tantivy with the terms of `text.analysis` and follows the records."""
