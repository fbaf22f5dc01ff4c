"""Documents in, answers out: ingestion and answering over any backend."""
