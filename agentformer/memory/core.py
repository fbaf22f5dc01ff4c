"""Core memory: named blocks that are always in context, small by rule and edited in place.

A block is an entry of the tier `core` whose title is its name; its id follows from its place and name, so that two
writers who make it at once make one block.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, MemoryBackend, MemoryEntry, Scope

BLOCK_KIND = "block"
_TRIES = 100  # of an edit, while others edit the same block
_PAGE = 1000


class CoreMemory:
    """The blocks of a backend. `count_tokens` measures a block; none may have more than `block_tokens`.

    Blocks belong to a namespace, and to an agent and a user where these are given. Edits are atomic: of two
    writers at once each sees the other's text.
    """

    def __init__(self, backend: MemoryBackend, count_tokens: Callable[[str], int], *, block_tokens: int) -> None:
        self._backend = backend
        self._count_tokens = count_tokens
        self.block_tokens = block_tokens

    def blocks(
        self, namespace: str = DEFAULT_NAMESPACE, *, agent_id: str | None = None, user_id: str | None = None
    ) -> list[MemoryEntry]:
        """Live core entries in order of name: those of this agent and user, and those of no one in particular.
        Without an agent or a user, those of no one: a person's blocks are nobody else's business."""
        place = _place(namespace, agent_id, user_id)
        scope = Scope(place[0], tiers=("core",))
        found = [
            entry
            for entry in self._backend.list(scope, limit=_PAGE)
            if entry.agent_id in (None, agent_id) and entry.user_id in (None, user_id)
        ]
        return sorted(found, key=lambda entry: (entry.title, entry.id))

    def get(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        agent_id: str | None = None,
        user_id: str | None = None,
    ) -> MemoryEntry:
        """The block of this name. Raises `NotFound`."""
        name, place = fields.name("name", name), _place(namespace, agent_id, user_id)
        if found := self._backend.get([block_id(name, *place)]):
            return found[0]
        # A block of the first release, which gave blocks ids like any.
        scope = Scope(place[0], tiers=("core",), agent_id=agent_id, user_id=user_id)
        for entry in self._backend.list(scope, limit=_PAGE):
            if entry.title == name and (entry.agent_id, entry.user_id) == (agent_id, user_id):
                return entry
        raise NotFound(f"there is no core block {name!r} in namespace {namespace}; append to it to begin it")

    def append(
        self,
        name: str,
        text: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        agent_id: str | None = None,
        user_id: str | None = None,
    ) -> MemoryEntry:
        """Add a line to a block, which begins with it if it is not there; a line that it has already is not added
        again. Raises `InvalidInput` on overflow."""
        text = fields.content(text)
        for _ in range(_TRIES):
            try:
                former = self.get(name, namespace=namespace, agent_id=agent_id, user_id=user_id)
            except NotFound:
                fresh = self.new_block(name, text, namespace=namespace, agent_id=agent_id, user_id=user_id)
                try:
                    return self._backend.store([fresh])[0]
                except Conflict:
                    continue
            if text in former.content.split("\n"):
                return former
            try:
                return self._edited(former, f"{former.content}\n{text}")
            except Conflict:
                continue
        raise Conflict(f"core block {name!r} is edited by too many at once; try again")

    def replace(
        self,
        name: str,
        old: str,
        new: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        agent_id: str | None = None,
        user_id: str | None = None,
    ) -> MemoryEntry:
        """Put `new` where the block says exactly `old`, which must occur once. Raises `InvalidInput`, `NotFound`."""
        old, new = fields.text("old", old), fields.text("new", new)
        for _ in range(_TRIES):
            former = self.get(name, namespace=namespace, agent_id=agent_id, user_id=user_id)
            times = former.content.count(old) if old else 0
            if times != 1:
                raise InvalidInput("old", f"occurs {times} times in core block {name!r}; give a piece that occurs once")
            changed = former.content.replace(old, new)
            if not changed.strip():
                raise InvalidInput("new", f"would leave core block {name!r} empty; remove the block instead")
            try:
                return self._edited(former, changed)
            except Conflict:
                continue
        raise Conflict(f"core block {name!r} is edited by too many at once; try again")

    def remove(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        agent_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        """Delete a block. Raises `NotFound`."""
        block = self.get(name, namespace=namespace, agent_id=agent_id, user_id=user_id)
        self._backend.remove([block.id])

    def new_block(
        self, name: str, content: str, *, namespace: str, agent_id: str | None, user_id: str | None
    ) -> MemoryEntry:
        """A block that is not stored yet. Raises `InvalidInput` on overflow."""
        name, place = fields.name("name", name), _place(namespace, agent_id, user_id)
        self.check(name, content)
        return MemoryEntry(
            id=block_id(name, *place),
            content=content,
            tier="core",
            kind=BLOCK_KIND,
            namespace=namespace,
            agent_id=agent_id,
            user_id=user_id,
            title=name,
            context=name,
        )

    def check(self, name: str, content: str) -> None:
        """Raises `InvalidInput` when a block of this content would be over the limit, and says by how much."""
        tokens = self._count_tokens(content)
        if tokens > self.block_tokens:
            raise InvalidInput(
                "content",
                f"core block {name!r} would have {tokens} tokens, {tokens - self.block_tokens} over its limit of "
                f"{self.block_tokens}; shorten it, or keep the rest as a fact",
            )

    def _edited(self, former: MemoryEntry, content: str) -> MemoryEntry:
        self.check(former.title, content)
        return self._backend.update(former.id, {"content": content}, expected_version=former.version)


def _place(namespace: str, agent_id: str | None, user_id: str | None) -> tuple[str, str | None, str | None]:
    return (
        fields.name("namespace", namespace),
        fields.optional_name("agent_id", agent_id),
        fields.optional_name("user_id", user_id),
    )


def block_id(name: str, namespace: str, agent_id: str | None, user_id: str | None) -> str:
    """The id of the block of this name and place."""
    place = json.dumps([namespace, agent_id, user_id, name])
    return str(uuid.uuid5(uuid.NAMESPACE_OID, place))
