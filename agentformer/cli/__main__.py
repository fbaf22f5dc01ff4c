"""`python -m agentformer.cli`."""

from agentformer.cli import main

main()
