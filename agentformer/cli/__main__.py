"""Runs the command line for `python -m agentformer.cli`."""

from agentformer.cli.start import run

run()
