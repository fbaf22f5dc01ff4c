"""Measure how well a memory finds known passages, and find better settings for it."""
