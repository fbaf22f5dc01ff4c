"""HTTP requests to model providers: the policy of deadlines, retries, limits and redaction, the clients, and the
guard."""
