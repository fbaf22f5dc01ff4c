"""Memory: the manager that callers talk to, and the backends that keep and find entries."""
