"""The memory: the manager, which callers use, and the backends, which store and search entries."""
