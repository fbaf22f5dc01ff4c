"""Runs `python -m agentformer.cli`."""

from agentformer.cli.start import run

run()
