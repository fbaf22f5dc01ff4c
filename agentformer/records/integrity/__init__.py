"""Verification, repair and recovery of the database of a store."""
