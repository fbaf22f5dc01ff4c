"""What a caller may do, and in which namespaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentformer.errors import Forbidden, InvalidInput, NotFound
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, MemoryEntry

Right = Literal["read", "write", "admin"]
RIGHTS: tuple[Right, ...] = ("read", "write", "admin")


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a key. `admin` holds the other two; `write` does not hold `read`, so that a key may bring things
    in without seeing what is there. Without namespaces, every one is reached."""

    rights: frozenset[Right]
    namespaces: tuple[str, ...] = ()
    without: frozenset[str] = field(default=frozenset())  # tools that are switched off
    key_id: str = ""  # "": nobody's key, such as the library's own caller

    def may(self, right: Right) -> bool:
        return right in self.rights or "admin" in self.rights

    def require(self, right: Right) -> None:
        """Raises `Forbidden`."""
        if not self.may(right):
            raise Forbidden(f"this key has no right to {right}; keys get rights when they are made")

    def require_tool(self, name: str) -> None:
        """Raises `Forbidden` for a tool that is switched off."""
        if name in self.without:
            raise Forbidden(f"the tool {name} is switched off for this key")

    def reaches(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def namespace(self, asked: str | None = None) -> str:
        """The namespace to work in: the one asked for, else the key's only one, else the default one. Raises
        `Forbidden`, whether or not there is anything in the namespace, and `InvalidInput`."""
        if asked is None:
            if len(self.namespaces) == 1:
                return self.namespaces[0]
            if not self.reaches(DEFAULT_NAMESPACE):
                raise InvalidInput("namespace", f"is missing; this key reaches {', '.join(self.namespaces)}")
            return DEFAULT_NAMESPACE
        if not self.reaches(fields.name("namespace", asked)):
            some = "s" if len(self.namespaces) > 1 else ""
            names = ", ".join(self.namespaces)
            raise Forbidden(f"only the namespace{some} {names} {'are' if some else 'is'} reached here")
        return asked

    def everywhere(self) -> None:
        """Raises `Forbidden` for a key that is bound to namespaces: what is asked for concerns all of them."""
        if self.namespaces:
            raise Forbidden("this concerns every namespace, and this key is bound to some")

    def sees(self, entry: MemoryEntry) -> MemoryEntry:
        """The entry, if its namespace is reached; else the same `NotFound` as for one that is not there."""
        if not self.reaches(entry.namespace):
            raise NotFound(f"there is no entry {entry.id}")
        return entry


EVERYTHING = Grant(frozenset(RIGHTS))  # of who has the store itself: the library, the command line, an open loopback
