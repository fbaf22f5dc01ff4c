"""Parts that all servers of this package share: problem documents, and protection against slow clients."""
