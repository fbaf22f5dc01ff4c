"""How well the development sets are found, in one table: `python -m bench.quality`."""
