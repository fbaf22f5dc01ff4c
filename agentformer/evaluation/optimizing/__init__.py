"""Searches for the retrieval settings that answer given questions best. `run.optimize` chooses settings with one half
of the questions and tests these settings with the other half."""
