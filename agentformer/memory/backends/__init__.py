"""The backends, one per folder. Each backend implements the `MemoryBackend` contract of `agentformer.types`."""
