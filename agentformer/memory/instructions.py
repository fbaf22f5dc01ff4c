"""Standing instructions of a user: sentences of messages that say how an agent should act ("Always answer in metric
units."). Each is kept as an entry of the kind `instruction` whose parent is its message, so that it is found without
words in common with a question, and stands in contexts within tokens of its own.

Only messages with the role user give instructions. Text of documents, tools and assistants never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentformer.records import fields
from agentformer.text.instructions import instructions_in
from agentformer.types import NOBODY, MemoryEntry, Scope, new_id

INSTRUCTION = "instruction"  # the kind of the entries


def instructions_in_scope(scope: Scope) -> Scope:
    """Return the scope of the instructions that hold for the user of `scope`: those of this user, and those without a
    user. Without a user, the instructions of users are left out."""
    user = NOBODY if scope.user_id is None else scope.user_id
    return replace(scope, tiers=("semantic",), kinds=(INSTRUCTION,), or_nobody=True, user_id=user)


def instructions_of(messages: Iterable[MemoryEntry]) -> Iterator[MemoryEntry]:
    """Yield an entry for each instruction in these messages of users. With its message, an instruction is removed. A
    message that was written after an agent had read retrieved text gives none. The mark of the API key that stored the
    message stays, since it decides who may read."""
    for message in messages:
        if message.metadata.get(fields.AFTER_RETRIEVED_TEXT):
            continue
        marks = {name: value for name, value in message.metadata.items() if name == fields.STORED_BY_KEY}
        for sentence in instructions_in(message.raw or message.content):
            yield MemoryEntry(
                id=new_id(),
                content=sentence,
                kind=INSTRUCTION,
                namespace=message.namespace,
                agent_id=message.agent_id,
                user_id=message.user_id,
                project=message.project,
                speaker=message.speaker,
                parent_id=message.id,
                metadata=marks,
                occurred_at=message.occurred_at,
                valid_from=message.valid_from,
                valid_to=message.valid_to,
                expires_at=message.expires_at,
            )
