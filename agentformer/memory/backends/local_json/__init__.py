"""A backend that stores each namespace in one JSON file, which people can read and edit."""

from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend

__all__ = ["LocalJsonMemoryBackend"]
