"""The same work by other libraries: one script each, run in the peers' virtual environment."""
