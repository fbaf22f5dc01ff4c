"""Memory: the manager that callers use, and the backends that store and search entries."""
