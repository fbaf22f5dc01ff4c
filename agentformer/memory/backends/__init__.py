"""One backend a file; all of them keep the `MemoryBackend` contract of `agentformer.types`."""
