"""Builds the context of a prompt within a token budget."""
