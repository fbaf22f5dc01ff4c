"""The word index: tantivy over our own terms, following the records."""
