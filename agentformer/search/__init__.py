"""Everything that ranks: hybrid search, fusion, boosts, rescoring and reranking."""
