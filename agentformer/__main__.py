"""Runs the command line for `python -m agentformer`."""

from __future__ import annotations

from agentformer.cli.start import run

run()
