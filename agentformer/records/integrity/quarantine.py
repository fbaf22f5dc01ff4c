"""The quarantine file: rows that a repair removes from the records are kept in a file beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer.errors import StoreFull
from agentformer.records.files import sync_folder


class Quarantine:
    """`damaged-DATE.jsonl`, created with the first row: a row per line, with its table, the reason, and all columns
    that could be read. Bytes that are not UTF-8 are written as {"hex": "..."}. Only its owner can read the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"damaged-{datetime.now(UTC):%Y-%m-%d}.jsonl"
        self.rows = 0

    def add(self, table: str, row: Mapping[str, Any], reason: str) -> None:
        """Append a row and sync the file. Raises `StoreFull`."""
        line = {"table": table, "why": reason, "row": {name: _readable(value) for name, value in row.items()}}
        new = not self.path.exists()
        try:
            with open(self.path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreFull(
                f"{self.path} cannot be written ({error.strerror or error}), so nothing is removed from the records; "
                "free space or check permissions"
            ) from error
        if new:
            sync_folder(self.path.parent)
        self.rows += 1


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    return value
