"""Measurements: each module prints ratios against a bound or a peer taken in the same run."""
