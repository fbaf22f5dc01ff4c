"""Settings that suit one's own questions: `run.optimize` chooses them on one half and judges them by the other."""
