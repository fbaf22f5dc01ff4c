"""The same work by other libraries: one script each, run in the peers' own virtual environment."""
