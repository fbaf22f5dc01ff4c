"""`python -m agentformer.cli`."""

from agentformer.cli import main

main(prog_name="agentformer")
