"""Endpoints for administrators: the keys, and the checks of the stored data."""
