"""Access control: API keys and their rights, and checks of the host and the origin of HTTP requests."""
