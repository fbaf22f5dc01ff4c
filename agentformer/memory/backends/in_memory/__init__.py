"""A store that works in memory; plugins extend it (docs/PROVIDERS.md)."""

from agentformer.memory.backends.in_memory.store import InMemoryStore as InMemoryStore
from agentformer.memory.backends.in_memory.store import Record as Record
