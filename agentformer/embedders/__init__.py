"""Embedders, which turn texts into vectors. Each provider of embedding models has its own module."""
