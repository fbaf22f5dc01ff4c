"""HTTP requests to the servers of models: the clients, the rules for deadlines, retries and size limits, the removal of
secrets from messages, and the guard that pauses calls to a failing server."""
