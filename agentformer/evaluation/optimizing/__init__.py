"""Find better retrieval settings for given questions. `run.optimize` chooses settings on one half of the questions and
tests them on the other half."""
