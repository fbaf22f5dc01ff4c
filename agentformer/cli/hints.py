"""What a person is told where there is nothing to show: where else to look. Reads, and counts nothing as used."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from agentformer.cli.output import say
from agentformer.search.salience import above_noise
from agentformer.types import Hits, Query, Scope

if TYPE_CHECKING:
    from agentformer.factory import AgentFormer

_NAMED = 20  # namespaces
_LOOKED_AT = 30  # hits


def tell_elsewhere(af: AgentFormer, namespace: str) -> None:
    """A note on standard error that names the namespaces there are, where this one holds nothing at all."""
    there = af.backend.namespaces()
    if namespace in there or not there:
        return
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    say(f"note: these namespaces hold something: {', '.join(there[:_NAMED])}{more}", err=True)


def nothing_recalled(af: AgentFormer, query: str, scope: Scope, *, every: bool) -> str:
    """That a search found nothing, with those options that would show more."""
    hints = [] if every or not _found(af, query, scope, True) else ["--all shows the nearest"]
    hints += _behind(af, query, scope, every)
    said = "nothing found" if every else "nothing found that bears on it"
    return f"{said}; {', '.join(hints)}" if hints else said


def nothing_listed(af: AgentFormer, scope: Scope, after: str) -> str:
    """That a list is empty, and why."""
    if after:
        return "no more entries"
    everything = dataclasses.replace(scope, include_archived=True)
    if not scope.include_archived and af.backend.count(everything):
        return "no entries but archived or superseded ones; --archived shows them"
    if af.backend.count(Scope(scope.namespace, include_archived=True)):
        return "no entries like that"
    return f"nothing remembered in namespace {scope.namespace}; begin with: agentformer remember TEXT"


def _found(af: AgentFormer, query: str, scope: Scope, every: bool) -> Hits:
    """What a recall shows, with `every` also what does not bear on the query."""
    from agentformer.search.relevance import relevant_hits

    hits = af.backend.search(Query(query, scope, _LOOKED_AT))
    return above_noise(hits, af.settings.noise_floor) if every else relevant_hits(query, hits)


def _behind(af: AgentFormer, query: str, scope: Scope, every: bool) -> list[str]:
    """What --archived would show, if anything."""
    if scope.include_archived:
        return []
    found = _found(af, query, dataclasses.replace(scope, include_archived=True), every)
    entries = [hit.entry for hit in found]
    if any(entry.archived_by for entry in entries):
        return ["--archived what summaries stand for"]
    gone = any(entry.archived_at or entry.superseded_by for entry in entries)
    return ["--archived what was archived or superseded"] if gone else []
