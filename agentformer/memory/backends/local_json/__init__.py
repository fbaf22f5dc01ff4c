"""A backend of one human-readable JSON file per namespace."""

from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend, present

__all__ = ["LocalJsonMemoryBackend", "present"]
