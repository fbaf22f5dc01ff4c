"""Indexes over the records. They follow the change feed of the records and can be rebuilt from the records at any
time."""
