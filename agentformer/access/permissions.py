"""Permissions: the rights of a caller and the namespaces to which they apply (`Grant`), and the table `PERMISSIONS`
with the right and the tools that each operation needs. HTTP, MCP and the tools of an agent all read this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentformer.access.limits import Allowance
from agentformer.errors import Forbidden, InvalidInput, NotFound
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, MemoryEntry

Right = Literal["read", "write", "admin", "metrics"]
Need = Right | Literal["change"]  # of an operation; `change` stands for the rights `read` and `write` together
Adds = Literal["", "text", "entries"]
RIGHTS: tuple[Right, ...] = ("read", "write", "admin", "metrics")
_METRICS = frozenset[Right]({"metrics"})
_NO_KEY = "write-only"  # instead of the id of the key, for a caller without a key


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a caller. The right `admin` includes all others. The right `write` does not include `read`, so a
    caller may be allowed to store entries but not to read them. Such a caller cannot change or delete entries either.
    A caller with the right `metrics` alone may read the metrics of the server, and nothing else. If `namespaces` is
    empty, the caller may use all namespaces."""

    rights: frozenset[Right]
    namespaces: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()  # tools that are switched off
    key_id: str = ""  # "": the caller has no key, such as a caller of the library
    allowance: Allowance | None = None  # the limits of the key; None: no limit

    def may(self, need: Need) -> bool:
        """Return True if the caller has this right. `change` needs the rights `read` and `write`, because the answer to
        a change, such as "there is no entry", shows what is stored."""
        rights = {"read", "write"} if need == "change" else {need}
        return rights <= self.rights or "admin" in self.rights

    def require(self, need: Need) -> None:
        """Raise `Forbidden` if the caller does not have this right. See `may`."""
        for right in ("read", "write") if need == "change" else (need,):
            if not self.may(right):
                raise Forbidden(f"this key does not have the right to {right}; use a key that has this right")

    def require_tool(self, name: str) -> None:
        """Raise `Forbidden` if the tool with this name is switched off for the caller."""
        if name in self.without:
            raise Forbidden(f"the tool {name} is switched off for this key")

    def reaches(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def namespace(self, requested: str | None = None) -> str:
        """Return the namespace that a request uses. If the request names no namespace, the result is the only namespace
        of the caller or, if the caller may use all namespaces, the default namespace. Raises `Forbidden` if the caller
        may not use the requested namespace; the message does not show whether this namespace exists. Raises
        `InvalidInput` if the caller has several namespaces and must name one of them."""
        if requested is None:
            if len(self.namespaces) == 1:
                return self.namespaces[0]
            if not self.reaches(DEFAULT_NAMESPACE):
                raise InvalidInput(
                    "namespace", f"is missing; name one of the namespaces of this key: {', '.join(self.namespaces)}"
                )
            return DEFAULT_NAMESPACE
        if not self.reaches(fields.name("namespace", requested)):
            plural = "s" if len(self.namespaces) > 1 else ""
            raise Forbidden(f"this key may use only the namespace{plural} {', '.join(self.namespaces)}")
        return requested

    def limited_to(self, other: Grant) -> Grant:
        """Return a grant that allows only what both grants allow, such as the rights of a key at a server with fewer
        rights. The returned grant has the `key_id` of this grant."""
        if self.namespaces and other.namespaces:
            namespaces = tuple(name for name in self.namespaces if name in other.namespaces)
            if not namespaces:  # an empty tuple would mean every namespace
                return replace(self, rights=frozenset())
        else:
            namespaces = self.namespaces or other.namespaces
        rights = frozenset(right for right in RIGHTS if self.may(right) and other.may(right))
        return Grant(rights, namespaces, self.without | other.without, self.key_id, self.allowance)

    @property
    def stored_metadata(self) -> dict[str, Any]:
        """The metadata that are added to each entry that the caller stores. If the API key has no right to read, they
        contain the id of the key, so that these entries can be distinguished from the entries of other callers."""
        return {} if self.may("read") else {fields.STORED_BY_KEY: self.key_id}

    def session(self, requested: str) -> str:
        """Return the id under which the session `requested` of the caller is stored. If the caller has no right to
        read, this id begins with the id of the caller's key. So the caller cannot add to a session of another caller,
        and cannot learn whether such a session exists."""
        return requested if self.may("read") else f"{self.key_id or _NO_KEY}/{requested}"

    def require_all_namespaces(self) -> None:
        """Raise `Forbidden` for a request about the whole memory if the caller may use only some namespaces."""
        if self.namespaces:
            raise Forbidden("this request needs a key for all namespaces, but this key may use only some namespaces")

    def require_visible(self, entry: MemoryEntry) -> MemoryEntry:
        """Return the entry if the caller may use the namespace of the entry. Otherwise raise `NotFound` with the same
        message as for a missing entry, so that the caller cannot learn whether the entry exists."""
        if not self.reaches(entry.namespace):
            raise NotFound(f"there is no entry {entry.id}")
        return entry


# For callers with access to the files: the library, the command line, and local requests while there are no keys.
EVERYTHING = Grant(frozenset({"read", "write", "admin"}))


@dataclass(frozen=True, slots=True)
class Permission:
    """The right and the tools that an operation needs. `right` is "any" if every authenticated caller may run the
    operation, unless `metrics` is its only right. `tools` are the tools of an agent that do the same as the operation:
    if one of them is switched off for a caller, the caller may not run the operation. `destructive` is True if the
    operation can delete or overwrite data permanently. `adds` says what the operation can store in addition: entries,
    or only text of entries that exist. The limits of a key may forbid it."""

    right: Need | Literal["any"]
    tools: tuple[str, ...] = ()
    destructive: bool = False
    adds: Adds = ""

    def allows(self, grant: Grant) -> bool:
        """Return True if the caller may run the operation."""
        allowed = grant.rights != _METRICS if self.right == "any" else grant.may(self.right)
        return allowed and grant.without.isdisjoint(self.tools)

    def require(self, grant: Grant) -> None:
        """Raise `Forbidden` if the caller may not run the operation."""
        if self.right != "any":
            grant.require(self.right)
        elif grant.rights == _METRICS:
            raise Forbidden("this key has the right to read metrics only; use a key with another right")
        for tool in self.tools:
            grant.require_tool(tool)


def _tool(name: str, right: Need, *, destructive: bool = False, adds: Adds = "") -> dict[str, Permission]:
    return {name: Permission(right, (name,), destructive, adds)}


# A destructive operation needs a destructive tool, so that a key without the destructive tools cannot run it.
PERMISSIONS: Mapping[str, Permission] = {
    # The tools of an agent, and the operations over HTTP that do the same as one tool.
    **_tool("memory_add", "write", adds="entries"),
    **_tool("memory_search", "read"),
    **_tool("memory_get", "read"),
    **_tool("memory_update", "change", adds="text"),
    **_tool("memory_delete", "change", destructive=True),
    **_tool("core_memory_append", "change", adds="entries"),
    **_tool("core_memory_replace", "change", adds="text"),
    **_tool("conversation_search", "read"),
    **_tool("memory_consolidate", "change"),
    **_tool("memory_learn", "change", adds="entries"),
    **_tool("memory_profile", "read"),
    **_tool("memory_audit", "read"),
    **_tool("memory_status", "read"),
    **_tool("rag_upload", "write", destructive=True, adds="entries"),
    **_tool("rag_query", "read"),
    **_tool("rag_sync", "change", destructive=True, adds="entries"),  # the answer shows which documents are stored
    **_tool("rag_list", "read"),
    # Special cases of these operations, which need another right or more tools.
    "memory_add a core block": Permission("change", ("memory_add", "core_memory_append")),
    "memory_add a record": Permission("change", ("memory_add", "memory_delete"), destructive=True),  # replaces entries
    "memory_update a core block": Permission("change", ("memory_update", "core_memory_replace")),
    "rag_upload unless stored": Permission(
        "change", ("rag_upload",), adds="entries"
    ),  # the answer shows whether the file is stored
    "rag_query from memories": Permission("read", ("rag_query", "memory_search")),
    "rag_query from messages": Permission("read", ("rag_query", "memory_search", "conversation_search")),
    # Operations without a tool.
    "context": Permission("read", ("memory_search", "conversation_search")),
    "core block": Permission("read", ("memory_get",)),
    "core blocks": Permission("read", ("memory_search",)),
    "document": Permission("read", ("rag_list",)),
    "document text": Permission("read", ("rag_query",)),
    "restore": Permission("change", ("memory_consolidate",)),
    "learning runs": Permission("read", ("memory_learn",)),
    "undo learning": Permission("change", ("memory_learn",)),
    "chat": Permission(
        "read", ("memory_search", "conversation_search", "rag_query")
    ),  # with `memory_add`, the turn is stored
    "embeddings": Permission("read"),
    "models": Permission("any"),
    "jobs": Permission("read", ("rag_upload",)),
    "cancel job": Permission("write", ("rag_upload",)),
    "reindex": Permission("admin"),
    "namespaces": Permission("read"),
    "status": Permission("admin", ("memory_status",)),
    "metrics": Permission("metrics"),
    "map": Permission("read", ("memory_search",)),
    "events": Permission("read", ("memory_search",)),  # their content also needs `memory_get`
    "webhooks": Permission("admin", ("memory_search",)),
    "trail": Permission("admin"),
    "export": Permission("admin"),
    "keys": Permission("admin"),
    "checks": Permission("admin", ("memory_status",)),
    "tools": Permission("any"),  # a call also needs the permission of the called tool
}
