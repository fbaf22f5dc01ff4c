"""Access control: API keys, their rights, and the hosts and origins that requests name."""
