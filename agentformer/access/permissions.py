"""The permission table: the right and the tools that each operation needs. HTTP, MCP and the tools of an agent read
this table, and contain no other list of rights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agentformer.access.grant import Grant, Need


@dataclass(frozen=True, slots=True)
class Permission:
    """What a caller needs for an operation. `right` is "any" if every authenticated caller may run it. `tools` are the
    tools of an agent that do the same: a caller is refused if one of them is switched off. `destructive` is True if
    the operation can delete or overwrite data permanently."""

    right: Need | Literal["any"]
    tools: tuple[str, ...] = ()
    destructive: bool = False

    def allows(self, grant: Grant) -> bool:
        """Return True if the caller may run the operation."""
        return (self.right == "any" or grant.may(self.right)) and grant.without.isdisjoint(self.tools)

    def require(self, grant: Grant) -> None:
        """Raise `Forbidden` if the caller may not run the operation."""
        if self.right != "any":
            grant.require(self.right)
        for tool in self.tools:
            grant.require_tool(tool)


def _tool(name: str, right: Need, *, destructive: bool = False) -> dict[str, Permission]:
    return {name: Permission(right, (name,), destructive)}


# A destructive operation needs a destructive tool, so that a key without the destructive tools cannot run it.
PERMISSIONS: Mapping[str, Permission] = {
    # The tools of an agent, and what does the same as one of them.
    **_tool("memory_add", "write"),
    **_tool("memory_search", "read"),
    **_tool("memory_get", "read"),
    **_tool("memory_update", "change"),
    **_tool("memory_delete", "change", destructive=True),
    **_tool("core_memory_append", "change"),
    **_tool("core_memory_replace", "change"),
    **_tool("conversation_search", "read"),
    **_tool("memory_consolidate", "change"),
    **_tool("memory_audit", "read"),
    **_tool("memory_status", "read"),
    **_tool("rag_upload", "write", destructive=True),
    **_tool("rag_query", "read"),
    **_tool("rag_list", "read"),
    # Cases of these operations that need more.
    "memory_add a core block": Permission("change", ("memory_add", "core_memory_append")),
    "memory_add a record": Permission("change", ("memory_add", "memory_delete"), destructive=True),  # replaces entries
    "memory_update a core block": Permission("change", ("memory_update", "core_memory_replace")),
    "rag_upload unless stored": Permission("change", ("rag_upload",)),  # the answer says whether it is stored
    "rag_query from memories": Permission("read", ("rag_query", "memory_search")),
    "rag_query from messages": Permission("read", ("rag_query", "memory_search", "conversation_search")),
    # Operations without a tool.
    "context": Permission("read", ("memory_search", "conversation_search")),
    "core block": Permission("read", ("memory_get",)),
    "core blocks": Permission("read", ("memory_search",)),
    "document": Permission("read", ("rag_list",)),
    "document text": Permission("read", ("rag_query",)),
    "restore": Permission("change", ("memory_consolidate",)),
    "jobs": Permission("read", ("rag_upload",)),
    "cancel job": Permission("write", ("rag_upload",)),
    "reindex": Permission("admin"),
    "status": Permission("admin", ("memory_status",)),
    "metrics": Permission("admin"),
    "tools": Permission("any"),  # calling a tool needs what the tool needs
}
