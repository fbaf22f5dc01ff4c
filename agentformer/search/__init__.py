"""Ranking of search results: hybrid search, fusion, boosts, rescoring and reranking."""
