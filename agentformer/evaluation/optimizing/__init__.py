"""Find better retrieval settings for given questions: `run.optimize` chooses on one half and tests on the other."""
