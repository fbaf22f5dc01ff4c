"""Speed, compared with other libraries that do the same work: `python -m bench.speed`."""
