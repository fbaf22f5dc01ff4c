"""Benchmarks. Each module prints ratios to a bound or a peer measured in the same run."""
