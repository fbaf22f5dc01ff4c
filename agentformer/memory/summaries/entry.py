"""A summary as the entry that is stored for it."""

from __future__ import annotations

from collections.abc import Sequence

from agentformer.memory.summaries.lines import flat, in_order, label, moment_of
from agentformer.memory.summaries.outcomes import CATEGORY, KIND
from agentformer.memory.summaries.summarizer import Summary
from agentformer.records.ids import new_id
from agentformer.text.dates.calendar import format_range
from agentformer.text.languages import detect_language
from agentformer.types import Link, MemoryEntry

_MOST_NAMES = 8  # in the title and the context; the metadata have all


def summary_entry(summary: Summary, originals: Sequence[MemoryEntry]) -> MemoryEntry:
    """The entry of a summary: in its originals' place, linked to each of them in order of time.

    Speakers and time range stand in title and context, which are found and shown but are no part of the text.
    """
    originals = in_order(originals)
    first, last = moment_of(originals[0]), moment_of(originals[-1])
    language = detect_language(summary.text, detect_language(" ".join(entry.content[:1000] for entry in originals)))
    speakers = list(dict.fromkeys(flat(entry.speaker) for entry in originals if entry.speaker.strip()))
    named = ", ".join(list(dict.fromkeys(filter(None, map(label, originals))))[:_MOST_NAMES])
    when = format_range(first, last, language) if first and last else ""
    known = {"language": language} if language else {}
    place = originals[0]
    return MemoryEntry(
        id=new_id(),
        content=summary.text,
        tier="semantic",
        kind=KIND,
        namespace=place.namespace,
        session_id=place.session_id,
        agent_id=place.agent_id,
        user_id=place.user_id,
        project=place.project,
        title=": ".join(filter(None, (named, when)))[:300],
        context=", ".join(filter(None, (named, when))),
        category=CATEGORY,
        derived_from=tuple(Link(entry.id) for entry in originals),
        occurred_at=last,
        metadata={
            "from": first.isoformat() if first else None,
            "to": last.isoformat() if last else None,
            "entries": len(originals),
            "speakers": speakers,
            "model": summary.model,
            "prompt_version": summary.prompt_version,
            "outcome": summary.outcome,
            **known,
        },
    )
