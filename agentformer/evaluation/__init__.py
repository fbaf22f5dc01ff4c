"""Measures how well a memory finds known passages, and searches for better settings of the memory."""
