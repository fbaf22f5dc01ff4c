"""Access control: API keys and their rights, checks of the host and the origin of HTTP requests, secrets in texts."""
