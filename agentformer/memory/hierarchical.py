"""The rules of the memory tiers: core, working, episodic and semantic. `CoreMemory` edits core blocks: named texts of
limited size that are in every context. `HierarchicalMemory` reads the last messages and notes of a session (working
memory) and the episodic entries.

A core block is an entry of the tier `core`, and the title of the entry is the name of the block. The id of a block is
computed from its name and owner, so that only one block is stored if two callers create the same block at the same
time.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from agentformer.errors import InvalidInput, NotFound, retried
from agentformer.memory.backends import all_entries, by_time
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, Hits, MemoryBackend, MemoryEntry, Query, Scope

BLOCK_KIND = "block"
_PAGE = 1000


class Owner(TypedDict, total=False):
    """The owner of a core block. The default of `namespace` is "default". A block without `agent_id` belongs to all
    agents, and a block without `user_id` to all users."""

    namespace: str
    agent_id: str | None
    user_id: str | None


class CoreMemory:
    """Reads and edits the core blocks of a backend. A block may have at most `block_tokens` tokens, counted by
    `count_tokens`. Each edit is atomic. A block belongs to a namespace, and also to an agent or a user if the caller
    gives one."""

    def __init__(self, backend: MemoryBackend, count_tokens: Callable[[str], int], *, block_tokens: int) -> None:
        self._backend = backend
        self._count_tokens = count_tokens
        self.block_tokens = block_tokens

    def blocks(
        self,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        agent_id: str | None = None,
        user_id: str | None = None,
        as_of: datetime | None = None,
    ) -> list[MemoryEntry]:
        """Return the core blocks of the namespace that hold now, or that held at the time `as_of`, sorted by name. A
        block is included if its agent is `agent_id` or is not set, and if its user is `user_id` or is not set."""
        scope = Scope(_checked_owner(namespace, agent_id, user_id)["namespace"], tiers=("core",), as_of=as_of)
        blocks = [
            entry
            for entry in self._backend.list(scope, limit=_PAGE)
            if entry.agent_id in (None, agent_id) and entry.user_id in (None, user_id)
        ]
        return sorted(blocks, key=lambda entry: (entry.title, entry.id))

    def get(self, name: str, **owner: Unpack[Owner]) -> MemoryEntry:
        """Return the core block with this name and owner. Raises `NotFound` if it does not exist."""
        return self._get(fields.name("name", name), _checked_owner(**owner))

    def append(self, name: str, text: str, **owner: Unpack[Owner]) -> MemoryEntry:
        """Add `text` as the last line of a core block, unless the block already contains this line. Create the block if
        it does not exist. Return the block. Raises `InvalidInput` if the block would have too many tokens.

        >>> af.memory.core.append("persona", "You help the harbour office.").title
        'persona'
        """
        text = fields.content(text)
        name, place = fields.name("name", name), _checked_owner(**owner)

        def edit() -> MemoryEntry:
            try:
                former = self._get(name, place)
                if text in former.content.split("\n"):
                    return former
                return self._update(former, f"{former.content}\n{text}")
            except NotFound:
                self.check(name, text)
            own_id = block_id(name, **place)
            block = MemoryEntry(own_id, text, tier="core", kind=BLOCK_KIND, title=name, context=name, **place)
            return self._backend.store([block])[0]

        return _repeat(edit, name)

    def replace(self, name: str, old: str, new: str, **owner: Unpack[Owner]) -> MemoryEntry:
        """Replace the text `old` by the text `new` in a core block, and return the block. Raises `NotFound` if the
        block does not exist. Raises `InvalidInput` if the block does not contain `old` exactly once, or if the new
        content would be empty or have too many tokens."""
        old, new = fields.text("old", old), fields.text("new", new)
        name, place = fields.name("name", name), _checked_owner(**owner)

        def edit() -> MemoryEntry:
            former = self._get(name, place)
            times = former.content.count(old) if old else 0
            if times != 1:
                raise InvalidInput("old", f"occurs {times} times in core block {name!r}; give a text that occurs once")
            content = former.content.replace(old, new)
            if fields.is_blank(content):
                raise InvalidInput("new", f"would leave core block {name!r} empty; remove the block instead")
            return self._update(former, content)

        return _repeat(edit, name)

    def remove(self, name: str, **owner: Unpack[Owner]) -> None:
        """Delete the core block with this name and owner. Raises `NotFound` if it does not exist."""
        self._backend.remove([self.get(name, **owner).id])

    def tokens(self, block: MemoryEntry) -> int:
        """Return the number of tokens of a block."""
        return self._count_tokens(block.content)

    def check(self, name: str, content: str) -> None:
        """Raise `InvalidInput` if `content` has more tokens than a core block may have. The error contains `name` and
        the number of excess tokens."""
        tokens = self._count_tokens(content)
        if tokens > self.block_tokens:
            raise InvalidInput(
                "content",
                f"core block {name!r} would have {tokens} tokens, {tokens - self.block_tokens} over its limit of "
                f"{self.block_tokens}; shorten the text, or store a part of it as a fact",
            )

    def _get(self, name: str, owner: dict[str, Any]) -> MemoryEntry:
        if blocks := self._backend.get([block_id(name, **owner)]):
            return blocks[0]
        # In version 0.1, blocks had random ids.
        for entry in self._backend.list(Scope(tiers=("core",), **owner), limit=_PAGE):
            if (entry.title, entry.agent_id, entry.user_id) == (name, owner["agent_id"], owner["user_id"]):
                return entry
        raise NotFound(f"there is no core block {name!r} in namespace {owner['namespace']}; append a text to create it")

    def _update(self, former: MemoryEntry, content: str) -> MemoryEntry:
        self.check(former.title, content)
        return self._backend.update(former.id, {"content": content}, expected_version=former.version)


def block_id(name: str, namespace: str, agent_id: str | None, user_id: str | None) -> str:
    """Return the id of the core block with this name and owner. Equal arguments give equal ids."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([namespace, agent_id, user_id, name])))


def _checked_owner(
    namespace: str = DEFAULT_NAMESPACE, agent_id: str | None = None, user_id: str | None = None
) -> dict[str, Any]:
    return {
        "namespace": fields.name("namespace", namespace),
        "agent_id": fields.optional_name("agent_id", agent_id),
        "user_id": fields.optional_name("user_id", user_id),
    }


def _repeat(edit: Callable[[], MemoryEntry], name: str) -> MemoryEntry:
    """Call the function `edit`, and return its result. If `edit` fails because another caller changed the block `name`
    at the same time, call `edit` again. Raises `Conflict` after many attempts."""
    return retried(edit, busy=f"core block {name!r} is edited by too many callers at the same time; try again")


class HierarchicalMemory:
    """Reads the entries of the tiers from a backend, and checks the rules of the tiers. The working tier of a session
    contains the last `working_messages` messages and notes of the session."""

    def __init__(self, backend: MemoryBackend, core: CoreMemory, *, working_messages: int) -> None:
        self._backend = backend
        self.core = core
        self.working_messages = working_messages

    def check_tier(self, entry: MemoryEntry) -> MemoryEntry:
        """Check the rules of the tier of an entry that will be stored, and return the entry. A core block is returned
        with an id that is computed from its name and owner. Raises `InvalidInput` if the entry breaks a rule."""
        if entry.tier == "working" and entry.session_id is None:
            raise InvalidInput("session_id", "is missing; an entry of the tier 'working' needs a session")
        if entry.tier != "core":
            return entry
        self.core.check(entry.title or "(untitled)", entry.content)
        if not entry.title:
            return entry
        own_id = block_id(entry.title, entry.namespace, entry.agent_id, entry.user_id)
        return dataclasses.replace(entry, id=own_id, kind=BLOCK_KIND if entry.kind == "fact" else entry.kind)

    def check_update(self, former: MemoryEntry, changes: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if `changes` to the entry `former` break a rule of the tier of this entry."""
        if former.tier != "core":
            return
        if changes.get("title", former.title) != former.title:
            raise InvalidInput("title", "is the name of the core block and cannot be changed; create another block")
        self.core.check(former.title or former.id, changes.get("content", former.content))

    def working(self, scope: Scope) -> list[MemoryEntry]:
        """Return the newest messages and notes of the session in `scope`, by event time. They are in order of id, in
        which they were stored, because `list(after=...)` continues after an id. Messages that a summary has replaced
        are included."""
        wide = dataclasses.replace(scope, tiers=(), include_summarized=True)
        scopes = (  # the messages, in whichever tier they are, and the notes of all kinds in the tier `working`
            dataclasses.replace(wide, kinds=wide.kinds or ("message",)),
            dataclasses.replace(wide, tiers=("working",)),
        )
        messages, notes = (self._backend.latest(each, limit=self.working_messages) for each in scopes)
        entries = {e.id: e for e in (*messages, *notes) if e.kind == "message" or e.tier == "working"}
        latest = sorted(entries.values(), key=by_time)[-self.working_messages :]
        return sorted(latest, key=lambda entry: entry.id)

    def transcript(self, session_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[MemoryEntry]:
        """Return all messages of a session, including archived messages, with their original text, oldest first."""
        scope = Scope(namespace, kinds=("message",), session_id=session_id, include_archived=True)
        messages = all_entries(self._backend, scope)
        originals = [m if m.raw is None else dataclasses.replace(m, content=m.raw) for m in messages]
        return sorted(originals, key=by_time)

    def recent(self, scope: Scope, limit: int) -> list[MemoryEntry]:
        """Return up to `limit` episodic entries in `scope`, newest first. Entries that a summary has replaced are
        included."""
        return [*self._backend.latest(episodic(scope), limit=limit)]

    def relevant(self, query: str, scope: Scope, limit: int) -> Hits:
        """Search the episodic entries in `scope`, including those that a summary has replaced. Return up to `limit`
        hits, best first."""
        return self._backend.search(Query(query, episodic(scope), limit))


def episodic(scope: Scope) -> Scope:
    """Return the scope of the episodic entries in `scope`, with those that a summary has replaced."""
    return dataclasses.replace(scope, tiers=("episodic",), include_summarized=True)
