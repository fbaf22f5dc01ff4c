"""The events of a memory, for programs that watch it (docs/EVENTS.md)."""

from agentformer.events.event_log import Filter as Filter
