"""The word index, which finds entries by the words of a query. It uses the search library tantivy, with terms
(normalized words) from `text.analysis`, and is updated with the changes of the records."""
