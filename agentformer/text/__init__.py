"""Functions that clean, split and analyze texts."""
