"""Ranking of search results: the search by words and vectors, the fusion of their results, boosts, the filter for
relevant results, and reranking."""
