"""HTTP to model providers: one policy of deadlines, retries, limits and redaction; the clients; the guard."""
