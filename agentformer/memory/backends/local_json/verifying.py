"""Are the files readable, and do the entries in them agree? Nothing here is derived, so little can be mended: a file is
for people, who find in the message what is wrong and where its copy is."""

from __future__ import annotations

from collections.abc import Mapping

from agentformer.memory.backends.local_json.folder import Folder
from agentformer.memory.backends.local_json.leases import Leases
from agentformer.memory.backends.local_json.record import Record
from agentformer.records.history import wrong_past
from agentformer.records.integrity.findings import Findings
from agentformer.types import Check

_EDIT = "mend it in an editor"


def verify(folder: Folder, leases: Leases, *, repair: bool) -> list[Check]:
    files = Findings("files", "the files can be read", "")
    records: Mapping[str, Record] = {}
    with files.reading():
        snapshot = folder.reading()
        records = snapshot.records
        files.looked_at = len(snapshot.shelves) + len(snapshot.damaged)
        files.look((reason, name) for name, reason in snapshot.damaged.items())
    return [each.check() for each in (files, _history(records), _links(records), _leases(leases, repair=repair))]


def _history(records: Mapping[str, Record]) -> Findings:
    found = Findings("history", "former versions are older than their entries, and of them", _EDIT, len(records))
    for record in records.values():
        if problem := wrong_past(record.entry.id, record.entry.version, record.former):
            found.add(problem, record.entry.id)
    return found


def _links(records: Mapping[str, Record]) -> Findings:
    found = Findings("links", "whatever a summary stands for is archived, and the summary is live", _EDIT)
    for record in records.values():
        entry = record.entry
        if entry.archived_by is None:
            continue
        found.looked_at += 1
        summary = records.get(entry.archived_by)
        if summary is None or summary.entry.namespace != entry.namespace:
            found.add(f"entry {entry.id} was archived for the summary {entry.archived_by}, which is not there")
        elif summary.entry.archived_at is not None:
            found.add(f"entry {entry.id} was archived for the summary {entry.archived_by}, which is archived itself")
        elif entry.archived_at is None:
            found.add(f"entry {entry.id} is live, and so is the summary {entry.archived_by} that stands for it")
    return found


def _leases(leases: Leases, *, repair: bool) -> Findings:
    found = Findings("leases", "leases can be read, and none ends later than its own length from now")
    with found.reading():
        found.looked_at, strange = leases.strange(drop=repair)
        found.look((text, text) for text in strange)
        if repair:
            found.mend(found.found, "they are given up")
    return found
