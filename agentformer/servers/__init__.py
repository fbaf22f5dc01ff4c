"""Parts that all servers of this package share: sockets, problem documents, the log, limits for slow clients."""
