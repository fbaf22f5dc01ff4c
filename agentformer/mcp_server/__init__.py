"""The MCP server of a memory. It needs the extra `mcp`."""

from agentformer.mcp_server.server import LazyMemory, MemoryServer

__all__ = ["LazyMemory", "MemoryServer"]
