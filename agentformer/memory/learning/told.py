"""Proposals of facts without a language model: the clauses of messages that state a fact by their form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentformer.memory.learning import Proposal
from agentformer.text.dates import months, weekdays
from agentformer.text.facts.claims import inner_names
from agentformer.text.facts.told import facts_told
from agentformer.text.languages import detect_language
from agentformer.types import MemoryEntry

_LANGUAGE_FROM = 1_000  # code points of a message from which its language is detected
_PER_MESSAGE = 5  # facts of one message; a message with more is a list or a story


def proposals(messages: Sequence[MemoryEntry]) -> Iterator[Proposal]:
    """Yield the facts that the messages state, in order. The text of a fact is its quote."""
    common = detect_language(" ".join(message.content[:200] for message in messages))
    languages = [detect_language(message.content[:_LANGUAGE_FROM], common) for message in messages]
    names = {
        word.casefold()
        for message, language in zip(messages, languages, strict=True)
        for name in inner_names(message.content[:_LANGUAGE_FROM], language)
        for word in name.split()
        if not months(word) and not weekdays(word)
    }
    for message, language in zip(messages, languages, strict=True):
        for start, end in facts_told(message.content, language, names)[:_PER_MESSAGE]:
            quote = message.content[start:end]
            yield Proposal(message, quote, quote)
