"""Dates in texts: their notations, expressions such as "two weeks ago", and the dates that a query names."""
