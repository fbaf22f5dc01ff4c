"""A backend of one human-readable JSON file per namespace."""

from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend

__all__ = ["LocalJsonMemoryBackend"]
