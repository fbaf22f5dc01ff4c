"""Builds the context of a prompt, which has a limited number of tokens."""
