"""Every row of a database that differs from its checksum, table by table."""

from __future__ import annotations

from collections.abc import Iterator

from agentformer.errors import StoreDamaged
from agentformer.records.integrity.verify import (
    DamagedRow,
    damaged_entries,
    damaged_history,
    damaged_metadata,
    readable_rows,
)
from agentformer.records.spaces import decode_space
from agentformer.records.vectors import vector_damage, window_damage
from agentformer.types import Connection


def damaged_vectors(connection: Connection) -> Iterator[DamagedRow]:
    """Yield vectors that differ from what was written, in order of number."""
    dimensions: dict[int, int] = {}
    for row in readable_rows(connection, "spaces", "id"):
        if isinstance(row, DamagedRow):
            continue
        try:
            dimensions[row["id"]] = decode_space(row).dimension
        except StoreDamaged:
            continue  # `damaged_metadata` reports it
    for row in readable_rows(connection, "vectors", "id"):
        if isinstance(row, DamagedRow):
            yield row
        elif problem := vector_damage(row["data"], row["checksum"], dimensions.get(row["space"])):
            yield DamagedRow("vectors", row["id"], row["id"], problem)


def damaged_windows(connection: Connection) -> Iterator[DamagedRow]:
    """Yield windows that differ from what was written, in order of number."""
    for row in readable_rows(connection, "windows", "id"):
        if isinstance(row, DamagedRow):
            yield row
        elif problem := window_damage(row):
            yield DamagedRow("windows", row["id"], row["id"], problem)


ALL = (damaged_entries, damaged_history, damaged_vectors, damaged_windows, damaged_metadata)
