"""The backend `local_json`, which stores each namespace in one JSON file that people can read and edit."""

from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend as LocalJsonMemoryBackend
