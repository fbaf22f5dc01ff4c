"""How fast it is, beside others that do the same work: `python -m bench.speed`."""
